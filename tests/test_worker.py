"""The process beside the server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

import pytest

from fedserver.worker import process
from fedserver.worker.messages import Request
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


ANSWERS = """
import sys, time
from multiprocessing.connection import Connection
from pathlib import Path
from common.records.rounds import Evaluation
from fedserver.worker.messages import Reply, encoded, request_of
line, asked, may = Connection(int(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
for number in (1, 2):
    assert request_of(line.recv_bytes()).conformal is None
    asked.touch()
    while not may.exists():
        time.sleep(0.01)
    line.send_bytes(encoded(Reply(evaluation=Evaluation(accuracy=number, loss=None, class_accuracy=()))))
"""
"""A worker that answers with the number of the question, once it may."""


def test_a_question_that_was_cancelled_leaves_the_next_its_own_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may = tmp_path / "asked", tmp_path / "may"

    def start(connection: int) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-c", ANSWERS, str(connection), str(asked), str(may)]
        return subprocess.Popen(arguments, pass_fds=[connection])

    async def ask_twice(worker: process.WorkerProcess) -> float:
        first = asyncio.create_task(worker._ask(Request(evaluate=True)))
        await asyncio.to_thread(wait_until, asked.exists, "the question has come")
        first.cancel()
        second = asyncio.create_task(worker._ask(Request(evaluate=True)))
        may.touch()
        reply, _ = await second
        assert first.cancelled()
        assert reply.evaluation is not None
        return reply.evaluation.accuracy

    monkeypatch.setattr(process, "start", start)
    worker = process.WorkerProcess()
    assert asyncio.run(ask_twice(worker)) == 2
    worker.close()
