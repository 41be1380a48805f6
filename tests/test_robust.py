"""The robust rules against updates that do not deserve trust: refused, taken back, or outvoted."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load_file

from common.errors import ConfigError, DivergedError, LeftOutError
from common.server_step import center
from common.server_step.robust import CUT, VARIATE_ROOM, Clip, Robustness, Size, trimmed_mean
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec
from fedclient.store.stored_update import Sender, StoredUpdate
from fedclient.training import outgoing, train
from fedclient.training.round_tensors import RoundTensors
from fedclient.training.task import Task
from fedclient.training.train import Trainer
from fedlab.demo import DemoConfig
from fedlab.simulation import simulate
from fedpvr.v1 import federation_pb2 as pb
from fedserver.config import RunConfig
from tests.rules import rules
from tests.server_round import ServerRound

LAYOUT = Layout(
    [
        TensorSpec("w", "float32", (5,)),
        TensorSpec("mean", "float32", (2,), Purpose.BUFFER),
        TensorSpec("w", "float32", (5,), Purpose.CONTROL),
    ]
)
RULES = ["median", "trimmed:0.2", "trimmed:0.4"]
HONEST = arrays(np.float64, (5, 12), elements=st.floats(-1, 1))
WILD = arrays(np.float64, (2, 12), elements=st.floats(-1e30, 1e30))


def flat(numbers: Any) -> Flat:
    """All tensors of a buffer from twelve numbers."""
    buffer, at = LAYOUT.allocate(), 0
    for k, spec in enumerate(LAYOUT.specs):
        LAYOUT.array(buffer, k)[...] = numbers[at : at + spec.num_elements]
        at += spec.num_elements
    return buffer


def numbers(buffer: Flat) -> Any:
    """And back."""
    return np.concatenate([LAYOUT.array(buffer, k).reshape(-1) for k in range(len(LAYOUT.specs))])


def step(rule: str, updates: Any, x: Any) -> Any:
    """The next x, buffers and c from updates of all clients, whose c_i were zero."""
    rule_of_all = rules(aggregation=rule, num_clients=len(updates))
    server = ServerRound(rule_of_all, LAYOUT, flat(x), exact=False)  # So that c comes from the c_i.
    for i, update in enumerate(updates):
        server.add(i, flat(update), checked=False)
    return numbers(server.close().flat)


@pytest.mark.parametrize("rule", ["median", "trimmed:0.3"])
@given(honest=HONEST, wild=WILD)
def test_two_of_seven_cannot_push_any_number_beyond_what_the_others_say(
    rule: str, honest: Any, wild: Any
) -> None:
    x = np.zeros(12)
    new = step(rule, np.concatenate([honest, wild]), x)
    assert np.all(new >= honest.min(axis=0) - 1e-6)
    assert np.all(new <= honest.max(axis=0) + 1e-6)


@pytest.mark.parametrize("rule", RULES)
@given(honest=HONEST, order=st.permutations(range(5)))
def test_the_order_of_updates_does_not_matter(rule: str, honest: Any, order: list[int]) -> None:
    x = honest[0]
    np.testing.assert_array_equal(step(rule, honest, x), step(rule, honest[order], x))


@pytest.mark.parametrize("rule", ["mean", *RULES])
def test_what_all_say_is_what_comes_out(rule: str) -> None:
    update = np.linspace(-1, 1, 12).astype(np.float32)
    np.testing.assert_allclose(step(rule, [update] * 5, np.zeros(12)), update, rtol=1e-6)


@given(honest=HONEST, wild=st.floats(-1e30, 1e30))
def test_a_trimmed_mean_cuts_one_at_least(honest: Any, wild: float) -> None:
    stack = np.concatenate([honest, np.full((1, 12), wild)])
    kept = np.sort(stack, axis=0)[1:-1].mean(axis=0)
    np.testing.assert_allclose(trimmed_mean(stack, 0.01), kept, atol=1e-12)
    np.testing.assert_allclose(trimmed_mean(honest[:2], 0.4), honest[:2].mean(axis=0), atol=1e-12)


def test_elements_are_handled_in_pieces_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = np.random.default_rng(0).normal(size=(5, 12))
    whole = step("median", updates, np.zeros(12))
    monkeypatch.setattr(center, "STACK_ELEMENTS", 10)
    np.testing.assert_array_equal(step("median", updates, np.zeros(12)), whole)


def clips(
    bound: float, *norms: float, steps: list[int] | None = None, **others: list[float]
) -> dict[int, Clip]:
    """What a bound makes of updates that move x this far."""
    sizes = {
        i: Size({Purpose.MODEL: norm} | {Purpose[k]: v[i] for k, v in others.items()}, (steps or [1] * 9)[i])
        for i, norm in enumerate(norms)
    }
    return Robustness(norm_bound=bound).clips(sizes)


def test_of_an_update_far_above_the_median_little_counts() -> None:
    found = clips(5.0, 1.0, 1.2, 0.8, 30.0)
    assert found.keys() == {3}
    assert found[3].times_usual == 30.0, "the median of the others is 1"
    assert (found[3].share, found[3].variate_share) == (0.0, 0.0)
    slightly = clips(5.0, 1.0, 1.2, 0.8, 6.05)[3]
    assert slightly.share == slightly.variate_share == pytest.approx((CUT - 1.1) / (CUT - 1))
    assert clips(5.0, 1.0, 1.2, 0.8, 5.4) == {}
    assert clips(2.0) == {}
    assert Robustness().clips({i: Size({Purpose.MODEL: norm}, 1) for i, norm in enumerate([1, 1, 1e9])}) == {}


@given(st.floats(1, 1e300))
def test_the_larger_an_update_the_less_it_moves_x(times: float) -> None:
    def share(norm: float) -> float:
        found = clips(2.0, 1.0, 1.0, norm)
        return found[2].share if found else 1.0

    assert times * share(times) <= 2.0
    assert share(1.01 * times) <= share(times)
    assert times <= 2 * CUT or share(times) == 0.0


@given(st.lists(st.floats(0.1, 5), min_size=4, max_size=8), st.floats(1e3, 1e30))
def test_what_does_not_count_does_not_say_what_is_usual(norms: list[float], wild: float) -> None:
    without, beside = clips(2.0, *norms), clips(2.0, *norms, wild)
    assert beside.pop(len(norms)).share == 0.0
    if (
        2 * sum(clip.share > 0 for clip in without.values()) + 2 * (len(norms) - len(without))
        > len(norms) + 1
    ):
        assert beside == without


def test_if_most_did_not_move_nothing_of_those_who_did_counts() -> None:
    assert clips(5.0, 0.0, 0.0, 1.0)[2] == Clip(math.inf, 0.0, 0.0, far_too_large=True)


def test_who_has_more_data_moves_farther() -> None:
    assert clips(2.0, 1.0, 1.0, 8.0, steps=[10, 10, 80]) == {}
    assert clips(2.0, 1.0, 1.0, 8.0, steps=[10, 10, 10]).keys() == {2}
    assert clips(2.0, 1.0, 1.0, 1e6, steps=[10, 10, 10**9]).keys() == {2}, "but not as far as one claims"
    assert clips(2.0, 0.1, 1.0, 1.0, steps=[1, 50, 50]) == {}, "and who has less is not suspicious"


def test_an_ordinary_y_i_hides_no_wild_c_i_and_of_c_i_no_more_counts_than_of_y_i() -> None:
    sly = clips(5.0, 1.0, 1.0, 1.0, CONTROL=[1.0, 1.0, 1e30])
    assert (sly[2].share, sly[2].variate_share) == (1.0, 0.0)
    assert clips(5.0, 1.0, 1.0, 1.0, CONTROL=[1.0, 1.0, 4.9 * VARIATE_ROOM]) == {}
    wild = clips(5.0, 1.0, 1.0, 10.0, CONTROL=[1.0, 1.0, 1.0])
    assert (wild[2].share, wild[2].variate_share) == (0.0, 0.0)


@pytest.mark.parametrize("rule", ["mean", *RULES])
@given(honest=HONEST)
def test_what_is_far_too_large_changes_x_no_more_than_what_was_never_sent(rule: str, honest: Any) -> None:
    honest[:, :7] = np.sign(honest[:, :7] + 1e-9) * (
        1 + 0.1 * np.abs(honest[:, :7])
    )  # Of about the same size.
    after = []
    for updates in ([*honest], [*honest, np.full(12, 1e30)]):
        server = ServerRound(
            rules(aggregation=rule, num_clients=6, norm_bound=2.0), LAYOUT, flat(np.zeros(12))
        )
        for i, update in enumerate(updates):
            server.add(i, flat(update), checked=False)
        after.append(numbers(server.close([None] * (6 - len(updates))).flat)[:7])
    np.testing.assert_array_equal(after[0], after[1])


@pytest.mark.parametrize("rule", ["median", "trimmed:0.3"])
@given(honest=HONEST, wild=st.floats(-1e30, 1e30), absent=st.integers(0, 2))
def test_c_is_the_center_of_all_c_i_whoever_takes_part(
    rule: str, honest: Any, wild: float, absent: int
) -> None:
    """So a member that is wild once does not push c for ever."""
    everybody = [*honest[:, 7:].astype(np.float32), np.full(5, wild, np.float32)]
    server = ServerRound(rules(aggregation=rule, num_clients=6), LAYOUT, flat(np.zeros(12)))
    for i, c_i in enumerate(everybody[absent:]):
        server.add(i, flat([0] * 7 + [*c_i]), flat_variate(np.ones(5)), checked=False)
    new = numbers(server.close([flat_variate(c_i) for c_i in everybody[:absent]]).flat)[7:]
    center = Robustness(rule).center()
    assert center is not None
    np.testing.assert_array_equal(new, center(np.stack(everybody).astype(np.float64)).astype(np.float32))
    assert np.all(np.abs(new) <= 1)


def flat_variate(values: Any) -> Flat:
    """A c_i as it is kept."""
    buffer = np.zeros(64, np.uint8)
    buffer[:20].view(np.float32)[:] = values
    return buffer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregation": "best"}, "--aggregation must be mean, median or trimmed:F"),
        ({"aggregation": "trimmed:0.5"}, "--aggregation must be mean, median or trimmed:F"),
        ({"aggregation": "trimmed:x"}, "--aggregation must be mean, median or trimmed:F"),
        ({"aggregation": "median", "weighting": "examples"}, "goes with --weighting uniform only"),
        ({"norm_bound": 1.0}, "--norm-bound must be above 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**settings)


FIVE: dict[str, Any] = {
    "num_clients": 5,
    "rounds": 4,
    "local_epochs": 2,
    "alpha": 100.0,
    "eta_l": 0.2,
    "momentum": 0.5,
    "width": 0.5,
}


HONEST_CLEARING = Trainer._clear_for_sending


class Traitor:
    """A client that sends the opposite of what it learned, so many times over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: float, index: int = 4) -> None:
        def turn_round(trainer: Trainer, tensors: RoundTensors, steps: int) -> None:
            if trainer._index == index:
                for name, y in tensors.y.items():
                    y.copy_(tensors.x[name] - times * (y - tensors.x[name]))
            HONEST_CLEARING(trainer, tensors, steps)

        monkeypatch.setattr(Trainer, "_clear_for_sending", turn_round)


def records(config: RunConfig, folder: Path) -> list[dict[str, Any]]:
    """What a simulated run says of its rounds."""
    with suppress(LeftOutError):  # A member that is not in the model.
        simulate(config, folder, lambda line: None)
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("aggregation", "variates"),
    [
        ("mean", "explicit"),
        pytest.param("mean", "derived", marks=pytest.mark.slow),
        pytest.param("median", "explicit", marks=pytest.mark.slow),
        pytest.param("median", "derived", marks=pytest.mark.slow),
        ("trimmed:0.2", "derived"),
        pytest.param("trimmed:0.2", "explicit", marks=pytest.mark.slow),
    ],
)
def test_a_traitor_among_five_does_not_ruin_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aggregation: str, variates: str
) -> None:
    Traitor(monkeypatch, 100)
    found = records(RunConfig(**FIVE, aggregation=aggregation, variates=variates), tmp_path / "run")
    assert found[-1]["accuracy"] > 0.7
    assert all("client-4" in record["clipped"] for record in found)
    assert found[0]["clipped"]["client-4"] > 50


def test_without_a_bound_he_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Traitor(monkeypatch, 100)
    with pytest.raises(DivergedError, match="no client has an update to give"):
        simulate(RunConfig(**FIVE, norm_bound=None), tmp_path / "run", lambda line: None)


@pytest.mark.parametrize(
    "algorithm", ["feddyn", *(pytest.param(a, marks=pytest.mark.slow) for a in ("fedpvr", "scaffold"))]
)
def test_of_whom_not_all_counts_goes_on_with_the_c_i_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """It is sent the server's, so c stays the mean of all c_i, and its next c_i follows from there."""
    Traitor(monkeypatch, 20)
    config = RunConfig(**(FIVE | {"rounds": 3, "local_epochs": 1}), algorithm=algorithm)
    assert all(record["clipped"] and record["updates"] == 5 for record in records(config, tmp_path / "run"))
    c_is = [load_file(path) for path in sorted((tmp_path / "run" / "ledger").glob("client-*"))]
    assert len(c_is) == 5
    if algorithm != "feddyn":
        for name, c in load_file(tmp_path / "run" / "control.safetensors").items():
            np.testing.assert_allclose(c, np.mean([c_i[name] for c_i in c_is], axis=0), atol=1e-6)


class Liar:
    """What the fifth client says of its updates, changed in the header or in c_i."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
        honest, encode = StoredUpdate.header, outgoing.encode

        def header(update: StoredUpdate, sender: Sender) -> pb.UpdateHeader:
            found = honest(update, sender)
            if sender.client == "client-4" and lie in LIES:
                for field, value in LIES[lie].items():
                    setattr(found, field, value)
            return found

        def encoded(task: Task, tensors: RoundTensors, steps: int, seed: int, index: int) -> Flat:
            payload = encode(task, tensors, steps, seed, index)
            if index == 4 and lie == "c_i":
                for k in task.layout.indices(Purpose.CONTROL):
                    task.layout.array(payload, k)[...] = 3e38
            return payload

        monkeypatch.setattr(StoredUpdate, "header", header)
        monkeypatch.setattr(train, "encode", encoded)


LIES: dict[str, dict[str, Any]] = {
    "steps": {"steps": 1},
    "all steps": {"steps": 2**64 - 1},
    "examples": {"examples": 2**64 - 1},
    "loss": {"loss": -1.7e308},
    "accuracy": {"validation_accuracy": -7e300},
    "no accuracy": {"validation_accuracy": math.nan},
    "seconds": {"train_seconds": 1.7e308},
}


@pytest.mark.parametrize("lie", ["c_i", *LIES])
def test_an_update_that_cannot_be_true_is_rejected_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    Liar(monkeypatch, lie)
    config = RunConfig(**(FIVE | {"rounds": 2, "local_epochs": 1, "batch_size": 128}))
    found = records(config, tmp_path / "run")
    assert [record["updates"] for record in found] == [4, 4]
    assert all(abs(record["train_loss"]) < 10 for record in found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("aggregation", ["mean", "median", "trimmed:0.2"])
def test_on_the_demo_a_traitor_costs_no_more_than_three_points_against_one_who_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aggregation: str
) -> None:
    """He sends x - 3 (y - x) in every round. Each of the five clients is tried in this part."""
    demo = DemoConfig(folder=tmp_path)
    settings: dict[str, Any] = {
        name: getattr(demo, name) for name in ("rounds", "local_epochs", "alpha", "eta_l", "seed")
    }
    config = RunConfig(num_clients=demo.clients, aggregation=aggregation, **settings)
    for i in range(demo.clients):
        Traitor(monkeypatch, 3, i)
        traitor = records(config, tmp_path / f"{i}-traitor")[-1]["accuracy"]
        Traitor(monkeypatch, math.nan, i)  # What is not finite is not sent.
        silent = records(config, tmp_path / f"{i}-silent")[-1]["accuracy"]
        assert traitor >= silent - 0.03, f"client {i}: {traitor} against {silent}"
