"""Speeds of links, as people write them."""

from __future__ import annotations

import re

from common.errors import ConfigError

_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_per_second(flag: str, text: str) -> float:
    """Bits per second of a speed such as 2Mbit."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?)\s*([kmg]?bit)(/s)?", text.lower())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"{flag} must be a speed such as 2Mbit, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]
