"""What is wrong with a file that is looked at."""

from __future__ import annotations

import sys

from common.errors import printable


class Problems(list[str]):
    """Keeps problems for whoever prints the result, and shows each on standard error at once."""

    def __call__(self, line: str) -> None:
        """Takes in one problem."""
        self.append(line)
        print(printable(line), file=sys.stderr, flush=True)
