"""A program that is told to end does so, whatever it is doing at that moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

DROPPED = """
import os, signal, sys, threading, weakref
from common.processes.signals import stopped_by_signals

class Anything: pass

with stopped_by_signals():
    # Nobody can catch what is raised in the callback of a weak reference: Python drops it, and goes on.
    here = Anything()
    reference = weakref.ref(here, lambda _: os.kill(os.getpid(), getattr(signal, sys.argv[1])))
    del here
    print("goes on", flush=True)
    try:
        threading.Event().wait()
    finally:
        print("is unwound", flush=True)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 0), ("SIGINT", 130)])
def test_a_signal_that_python_drops_ends_the_program_all_the_same(name: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DROPPED, name], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "goes on\nis unwound\n", "")
