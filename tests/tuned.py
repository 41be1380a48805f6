"""Runs a program with a constant changed: python -m tests.tuned MODULE:NAME VALUE PROGRAM ARGUMENT..."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Runs the program."""
    place, value, *program = sys.argv[1:]
    module, _, name = place.partition(":")
    owner = importlib.import_module(module)
    kind = type(getattr(owner, name))
    setattr(owner, name, kind(value))
    sys.argv = program
    importlib.import_module(f"{program[0]}.cli").main()


if __name__ == "__main__":
    main()
