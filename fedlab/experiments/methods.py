"""What tables compare: algorithms and, where there is a control variate, both ways to it: sent or derived."""

from __future__ import annotations

METHODS: dict[str, dict[str, str]] = {
    "fedavg": {"algorithm": "fedavg"},
    "fedprox": {"algorithm": "fedprox"},
    "scaffold": {"algorithm": "scaffold"},
    "scaffold derived": {"algorithm": "scaffold", "variates": "derived"},
    "feddyn": {"algorithm": "feddyn"},
    "fedpvr": {"algorithm": "fedpvr"},
    "fedpvr derived": {"algorithm": "fedpvr", "variates": "derived"},
}
"""Settings by name."""
TRAFFIC = ("fedpvr", "fedpvr derived", "fedavg", "scaffold", "scaffold derived")
"""Those that differ in what they send."""
DERIVED = {"scaffold derived": "scaffold", "fedpvr derived": "fedpvr"}
"""Those that are another method to the bit and differ in bytes alone, and which."""
TRAINED = tuple(method for method in METHODS if method not in DERIVED)
"""Those that need a run of their own to be judged."""
