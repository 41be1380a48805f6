"""A server whose S_svr is chosen by a script: python -m tests.scripted_svr [TRAP...] fedserver ARGUMENT...

What is measured in a few rounds of a small problem changes little; here modules enter, leave and come back.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from common.server_step import adaptive
from common.server_step.adaptive import Choice, Module
from tests import killpoint

AFTER = [{"4"}, {"4", "2"}, {"2"}, {"2"}, {"2", "4"}, set(), {"0"}]
"""Modules of tests/problem.py that are in S_svr after each round; after later ones as after the last."""
THROUGH = ("tests.scripted_svr",)
"""What to start a server through; traps may follow."""


def scripted_choice(
    choice: Choice, candidates: Sequence[Module], xi: Mapping[str, float], budget: float, r: int
) -> Choice:
    """In the place of the rule."""
    wanted = AFTER[min(r, len(AFTER)) - 1]
    names = [name for module in candidates if module.name in wanted for name in module.parameters]
    return Choice(since={name: choice.since.get(name, r) for name in names}, streaks={"0": r % 2})


def main() -> None:
    """Runs the program."""
    adaptive.next_choice = scripted_choice
    sys.argv = sys.argv[1:]
    killpoint.main()


if __name__ == "__main__":
    main()
