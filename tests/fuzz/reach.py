"""Which steps from line to line an input makes a target take, in our own code."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.target import Target

Step = tuple[str, int, int]
_ROOT = Path(__file__).parent.parent.parent
_OURS = tuple(f"{_ROOT}/{name}/" for name in ("common", "fedserver", "fedclient", "fedwire", "fedlab"))


def reached(target: Target, data: bytes) -> set[Step]:
    """The file and two lines of every step; measures memory as well."""
    steps: set[Step] = set()

    def on_call(frame: FrameType, event: str, value: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        last = 0

        def on_line(frame: FrameType, event: str, value: Any) -> Any:
            nonlocal last
            steps.add((frame.f_code.co_filename, last, frame.f_lineno))
            last = frame.f_lineno
            return on_line

        return on_line

    target.run_measured(data)
    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        target.run(data)
    finally:
        sys.settrace(before)
    return steps
