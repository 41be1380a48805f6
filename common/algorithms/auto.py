"""`--svr auto[:SHARE]`: the server chooses S_svr, round by round; the rule is in server_step/adaptive.py."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import ConfigError

AUTO = "auto"
DEFAULT_BUDGET = 0.1
"""At most a tenth more traffic than FedAvg has: enough for a classifier, and far from SCAFFOLD's double."""


def is_auto(pattern: str) -> bool:
    """Whether a pattern leaves the choice to the server."""
    return pattern.partition(":")[0] == AUTO


def auto_budget(patterns: Sequence[str]) -> float:
    """The share of the bytes of x that S_svr may have; 0 where patterns choose it."""
    if not any(map(is_auto, patterns)):
        return 0.0
    if len(patterns) > 1:
        raise ConfigError(f"--svr auto stands alone, got {', '.join(patterns)}; give it or patterns")
    word, colon, share = patterns[0].partition(":")
    try:
        budget = float(share) if colon else DEFAULT_BUDGET
    except ValueError:
        budget = 0.0
    if not 0 < budget <= 1:
        raise ConfigError(f"--svr {word}:SHARE needs a share of x's bytes above 0 and up to 1, got {share!r}")
    return budget
