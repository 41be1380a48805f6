"""Evaluation beside the rounds: who waits for it, and what is recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.events import Event, unheard
from common.records.rounds import Evaluation
from common.tensors.layout import Flat
from fedlab import simulation
from fedlab.direct.loop import Loop
from fedlab.direct.worker_here import WorkerHere
from fedserver.config import RunConfig
from fedserver.events.rounds import RoundEvaluated, RoundOpened
from fedserver.store.run_dir import RunDir

SETTINGS: dict[str, Any] = {"num_clients": 2, "local_steps": 1, "rounds": 5}


def simulated(
    path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[[list[Event]], bool], **settings: object
) -> tuple[list[Event], list[int]]:
    """A run whose evaluations begin when that holds; its events, and the round that is open at each."""
    events: list[Event] = []
    opened: list[int] = []
    evaluate = WorkerHere.evaluate

    async def slow(self: WorkerHere, flat: Flat) -> Evaluation:
        while not until(events):
            await asyncio.sleep(0.002)
        opened.append(max(event.round for event in events if isinstance(event, RoundOpened)))
        return await evaluate(self, flat)

    monkeypatch.setattr(WorkerHere, "evaluate", slow)
    simulation.simulate(RunConfig(**(SETTINGS | settings)), path / "run", events.append)
    return events, opened


def records(path: Path) -> list[dict[str, Any]]:
    """Lines of rounds.jsonl."""
    return [json.loads(line) for line in (path / "run" / "rounds.jsonl").read_text().splitlines()]


def test_the_next_round_opens_before_a_round_is_evaluated_and_the_one_after_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = 0

    def next_is_open(events: list[Event]) -> bool:
        nonlocal evaluated
        rounds = {event.round for event in events if isinstance(event, RoundOpened)}
        if evaluated < 4 and evaluated + 2 not in rounds:
            return False
        evaluated += 1
        return True

    _, opened = simulated(tmp_path, monkeypatch, next_is_open)
    assert opened == [2, 3, 4, 5, 5]
    assert [line["round"] for line in records(tmp_path)] == [1, 2, 3, 4, 5]
    assert all(line["accuracy"] is not None for line in records(tmp_path))


def test_with_eval_async_no_round_waits_and_the_newest_and_the_last_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def third_is_recorded(_: list[Event]) -> bool:
        return len(records(tmp_path)) >= 3

    events, opened = simulated(tmp_path, monkeypatch, third_is_recorded, eval_async=True)
    lines = records(tmp_path)
    assert opened[0] > 2, "more than one round behind"
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    told = [event.round for event in events if isinstance(event, RoundEvaluated)]
    assert told == [line["round"] for line in lines if line["accuracy"] is not None]
    assert (told[0], told[-1]) == (1, 5)
    assert 2 not in told, "there was a newer one when the worker had time for it"
    assert all((line["accuracy"] is None) == ("evaluate" not in line["seconds"]) for line in lines)


@pytest.mark.parametrize(("eval_async", "made_up_for"), [(False, [1, 2]), (True, [2])])
def test_a_run_that_was_stopped_in_its_evaluations_makes_up_for_those_that_are_due(
    tmp_path: Path, eval_async: bool, made_up_for: list[int]
) -> None:
    config = RunConfig(**(SETTINGS | {"rounds": 2, "eval_async": eval_async}))
    simulation.simulate(config, tmp_path / "run", unheard)
    whole = records(tmp_path)
    without = [line | {"accuracy": None, "loss": None} for line in whole]
    for line in without:
        line.pop("class_accuracy", None)
        line["seconds"] = {name: line["seconds"][name] for name in ("round", "train")}
    text = "".join(json.dumps(line) + "\n" for line in without)
    (tmp_path / "run" / "rounds.jsonl").write_text(text)
    (tmp_path / "run" / "conformal.json").unlink()
    events: list[Event] = []
    with RunDir(tmp_path / "run", resume=True) as run_dir, Loop() as loop:
        federation = loop.call(
            simulation._assembled(config, "run", run_dir, WorkerHere(config), events.append)
        )
        loop.call(federation.rounds.run())
    assert [event.round for event in events if isinstance(event, RoundEvaluated)] == made_up_for
    for line, before in zip(records(tmp_path), whole, strict=True):
        due = line["round"] in made_up_for
        assert (line["accuracy"], line["loss"]) == (
            (before["accuracy"], before["loss"]) if due else (None, None)
        )
    assert (tmp_path / "run" / "conformal.json").exists()
