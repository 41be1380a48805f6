"""Processes forked from one that has imported everything, which takes a second or two, once for all of them.

A fork copies one thread only. So nothing may have started others by then: torch is imported and set to one
thread, and of gRPC no channel and no server exists yet.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn


def share_memory() -> None:
    """Before forks: pages that no collector looks at stay shared by all processes."""
    gc.collect()
    gc.freeze()


def fork(program: Callable[..., object], *arguments: Any, **named: Any) -> int:
    """Runs a program in a new process that ends as the interpreter would; returns the process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _end_as(program, *arguments, **named)
    return pid


def _end_as(program: Callable[..., object], *arguments: Any, **named: Any) -> NoReturn:
    code = 1
    try:
        try:
            program(*arguments, **named)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):  # Nobody may be listening any more.
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
