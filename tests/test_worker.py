"""The process beside the server."""

from __future__ import annotations

import os
from multiprocessing import Pipe
from pathlib import Path

import pytest

from fedserver.worker import process
from tests.killpoint import trap
from tests.processes import WAIT_S, Federation, children, lasting_address, wait_until


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


def test_a_worker_with_nothing_to_do_rests_and_a_kill_meanwhile_loses_nothing(tmp_path: Path) -> None:
    flags = ["--num-clients", "1", "--rounds", "3", "--local-steps", "2", "--seed", "3", "--eval-every"]
    always, at_the_end = Federation(tmp_path / "always"), Federation(tmp_path / "end")
    try:
        always.server(*flags, "1")
        always.client("a")
        always.finish()
        listen = lasting_address()
        at_the_end.server(*flags, "0", listen=listen)
        at_the_end.client("a", through=trap("stop", "a round has come", 2))
        at_the_end.wait_for_stop("a")
        assert not children(at_the_end.processes["server"].pid), "nobody holds torch for nothing"
        at_the_end.kill("server")
        at_the_end.server(*flags, "0", listen=listen)
        at_the_end.go_on("a")
        at_the_end.finish()
    finally:
        always.close()
        at_the_end.close()
    assert [record["accuracy"] is None for record in at_the_end.rounds()] == [True, True, False]
    for key in ("accuracy", "loss"):
        assert at_the_end.rounds()[-1][key] == always.rounds()[-1][key]
    assert at_the_end.bytes("model") == always.bytes("model")
    sets = [(each.folder / "run" / "conformal.json").read_bytes() for each in (always, at_the_end)]
    assert sets[0] == sets[1]
