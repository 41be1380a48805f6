"""The process beside the server."""

from __future__ import annotations

import os
from multiprocessing import Pipe
from pathlib import Path

import pytest

from fedserver.worker import process
from tests.processes import WAIT_S, wait_until


def test_a_worker_ends_with_its_server_while_it_imports_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is killed in its first seconds leaves nobody behind."""
    (tmp_path / "torch.py").write_text("import pathlib, time; pathlib.Path('here').touch(); time.sleep(3600)")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split()])
    )
    monkeypatch.chdir(tmp_path)
    ours, theirs = Pipe()
    worker = process.start(theirs.fileno())
    theirs.close()
    try:
        wait_until(lambda: (tmp_path / "here").exists(), "the worker imports torch")
        ours.close()
        assert worker.wait(WAIT_S) == 0
    finally:
        worker.kill()
        worker.wait()
