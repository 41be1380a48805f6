"""Runs a program whose wall clock is wrong: python -m tests.skewed HOW PROGRAM ARGUMENT...

With HOW `jumping` the clock is off by another amount whenever it is read, up to a day ahead or behind; with
`later` it is ahead by as many days as a file called `later` says, once there is one.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

DAY_S = 86_400
LATER = "later"
_numbers = itertools.count(1)


def _jumping() -> float:
    return DAY_S * (next(_numbers) * 7919 % 2001 - 1000) / 1000


def later(folder: Path, days: float) -> None:
    """Sets the clock of a program that runs in this folder ahead, in one moment: it may be looking."""
    whole = folder / "later.new"
    whole.write_text(f"{days}")
    whole.replace(folder / LATER)


def _later() -> float:
    file = Path(LATER)
    return DAY_S * float(file.read_text()) if file.exists() else 0.0


WAYS = {"jumping": _jumping, "later": _later}
ALL_OF = {"fedserver": "fedserver.server", "fedclient": "fedclient.run.daemon"}
"""Modules that import every other of a program."""


def skew(how: str, program: str) -> None:
    """Puts the wrong clock in the place of the right one, in this program's modules and for all of `time`."""
    importlib.import_module(ALL_OF[program])
    off, real, real_ns = WAYS[how], time.time, time.time_ns

    class Skewed(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=off())

    time.time = lambda: real() + off()
    time.time_ns = lambda: real_ns() + int(off() * 1e9)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("common", program) and getattr(module, "datetime", None) is datetime:
            module.datetime = Skewed  # type: ignore[attr-defined]


def main() -> None:
    """Runs the program."""
    how, program = sys.argv[1], sys.argv[2]
    sys.argv = sys.argv[2:]
    skew(how, program)
    importlib.import_module(f"{program}.cli").main()


if __name__ == "__main__":
    main()
