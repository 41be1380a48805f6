"""Runs a program whose wall clock jumps: python -m tests.skewed PROGRAM ARGUMENT...

Every quarter of a second the clock is off by another amount, up to a day ahead or behind.
"""

from __future__ import annotations

import importlib
import sys
import time


def main() -> None:
    """Runs the program."""
    real, real_ns = time.time, time.time_ns

    def off() -> float:
        return 86_400 * ((int(4 * real()) * 7919) % 2001 - 1000) / 1000

    time.time = lambda: real() + off()
    time.time_ns = lambda: real_ns() + int(off() * 1e9)
    program = sys.argv[1]
    sys.argv = sys.argv[1:]
    importlib.import_module(f"{program}.cli").main()


if __name__ == "__main__":
    main()
