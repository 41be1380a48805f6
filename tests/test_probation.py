"""Who is far too large round after round does not count until that is made up for."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from common.records.provenance import read_provenance
from common.server_step.robust import (
    LONGEST_PROBATION,
    Robustness,
    Size,
    on_probation,
    strikes_after,
)
from common.server_step.step import CSource
from common.tensors.layout import Purpose
from fedclient.training.round_tensors import RoundTensors
from fedclient.training.train import Trainer
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.store.checkpoints import Checkpoint, Checkpoints
from tests.fuzz import known

BOUND = Robustness(norm_bound=2.0)


def rounds(norms: list[float], others: int = 4) -> list[float]:
    """What the updates of one client count in one round after the other, beside others that move by 1."""
    strikes: dict[int, int] = {}
    shares = []
    for norm in norms:
        sizes = {i: Size({Purpose.MODEL: 1.0 if i else norm}, 1) for i in range(others + 1)}
        found = BOUND.clips(sizes, on_probation(strikes))
        assert found.keys() <= {0}
        strikes = strikes_after(strikes, sizes, found)
        shares.append(found[0].share if found else 1.0)
    return shares


def test_who_was_too_large_once_counts_again_at_once() -> None:
    assert rounds([9.0, 1.0, 1.0, 9.0, 1.0]) == [0, 1, 1, 0, 1]


def test_who_was_too_large_for_long_stays_out_for_as_long() -> None:
    assert rounds([9.0] * 4 + [1.0] * 5) == [0] * 7 + [1, 1]


def test_but_never_for_longer_than_a_limit() -> None:
    assert rounds([9.0] * 50 + [1.0] * LONGEST_PROBATION).count(1.0) == 1


def test_what_is_a_little_too_large_is_no_reason() -> None:
    assert rounds([2.1] * 5 + [1.0]) == [rounds([2.1])[0]] * 5 + [1.0]


@given(st.lists(st.sampled_from([1.0, 9.0]), max_size=30))
def test_no_more_rounds_are_lost_than_were_spoiled_twice(norms: list[float]) -> None:
    assert rounds(norms).count(0) <= 2 * norms.count(9.0)


def test_who_is_on_probation_does_not_say_what_is_usual() -> None:
    sizes = {i: Size({Purpose.MODEL: norm}, 1) for i, norm in enumerate([1.0, 1.0, 1.5, 1.5, 3.0])}
    assert BOUND.clips(sizes).keys() == set()
    assert BOUND.clips(sizes, {3}).keys() == {3, 4}, "of the others the median is 1.25"


def test_if_most_would_be_on_probation_nobody_is() -> None:
    sizes = {i: Size({Purpose.MODEL: 1.0}, 1) for i in range(3)}
    assert BOUND.clips(sizes, {0, 1}) == {}
    assert BOUND.clips({0: sizes[0]}, {0}) == {}, "also if it is alone in its round"


def test_only_who_takes_part_makes_up_for_anything() -> None:
    assert strikes_after({0: 3, 1: 1}, [1], {}) == {0: 3}


class Waverer:
    """A client that sends the opposite of what it learned in its first turns, or nothing at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: float, turns: int) -> None:
        honest = Trainer._clear_for_sending

        def turn_round(trainer: Trainer, tensors: RoundTensors, steps: int) -> None:
            if trainer._index == 4:
                self._turn += 1
                factor = times if self._turn <= turns else -1.0
                for key, y in tensors.y.items():
                    y.copy_(tensors.x[key] - factor * (y - tensors.x[key]))
            honest(trainer, tensors, steps)

        self._turn = 0
        monkeypatch.setattr(Trainer, "_clear_for_sending", turn_round)


def simulated(folder: Path, variates: str) -> list[dict[str, float]]:
    """How many times as large as usual updates were of which not all counted, round by round."""
    config = RunConfig(
        num_clients=5,
        rounds=6,
        local_epochs=1,
        alpha=100.0,
        eta_l=0.2,
        eval_every=0,
        variates=variates,
        width=0.25,
    )
    simulate(config, folder, lambda line: None)
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line).get("clipped") or {} for line in lines]


@pytest.mark.parametrize("variates", ["explicit", pytest.param("derived", marks=pytest.mark.slow)])
def test_a_traitor_on_probation_is_as_good_as_one_who_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variates: str
) -> None:
    with monkeypatch.context() as patch:
        Waverer(patch, 30.0, turns=3)
        clipped = simulated(tmp_path / "traitor", variates)
    assert [[*found] for found in clipped] == [["client-4"]] * 5 + [[]]
    traitor = read_provenance(tmp_path / "traitor" / "model.safetensors").clients[4]
    assert (traitor.took_part, traitor.left_out) == ("6", {"on probation": "3-5", "too large": "1-2"})
    assert max(found["client-4"] for found in clipped[3:5]) < 2.0, "it has behaved for two rounds by then"
    with monkeypatch.context() as patch:
        Waverer(patch, math.nan, turns=5)  # What is not finite is not sent.
        simulated(tmp_path / "silent", variates)
    for name, x in load_file(tmp_path / "traitor" / "model.safetensors").items():
        np.testing.assert_array_equal(x, load_file(tmp_path / "silent" / "model.safetensors")[name])


def test_a_run_that_goes_on_knows_who_is_on_probation(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, known.LAYOUT)
    checkpoints.write(
        Checkpoint(
            1, known.values(), {}, {}, {}, set(), frozenset(), {4: 3}, CSource.FROM_MOVE, 2.0, known.ROUND
        )
    )
    assert checkpoints.read(1).strikes == {4: 3}
