"""Numbers as people read them."""

from __future__ import annotations


def mb(count: int) -> str:
    """Bytes, in the unit that fits."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def rate(bytes_per_second: float) -> str:
    """A speed as links are sold."""
    bits = 8 * bytes_per_second
    return f"{bits / 1e6:.1f} Mbit/s" if bits >= 1e6 else f"{bits / 1e3:.1f} kbit/s"


def times(count: int, what: str) -> str:
    """1 client, 2 clients."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
