"""The server's step as a whole: where x comes to rest, what c is the mean of, and what it costs to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.algorithms import ALGORITHMS
from common.algorithms.svr import Scaffold
from common.errors import ConfigError, Fault, WireError
from common.server_step.rules import Rules
from common.server_step.step import Closed, CSource, ServerStep, reweighted
from common.server_step.updates import UpdateReader
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec, from_float64
from common.wire import codecs
from tests.rules import rules
from tests.server_round import ServerRound

LAYOUT = Layout([TensorSpec("w", "float64", (1,)), TensorSpec("w", "float64", (1,), Purpose.CONTROL)])


def numbers(*values: float) -> Flat:
    """x and c, or any other numbers, one after the other in a buffer."""
    flat = Layout([TensorSpec(str(k), "float64", (1,)) for k in range(len(values))]).allocate()
    for at, value in enumerate(values):
        flat[64 * at : 64 * at + 8].view(np.float64)[0] = value
    return flat


@dataclass
class Quadratics:
    """Clients with losses n_i / 2 * (w - optimum_i)^2 and everything that server and clients keep."""

    examples: list[int]
    optima: list[float]
    flat: Flat = field(default_factory=lambda: numbers(3.0, 0.0))
    """x and c."""
    c_is: dict[int, float] = field(default_factory=dict)
    total: float = 0.0

    def round(self, rule: Rules, taking_part: list[int], num_steps: list[int]) -> Closed:
        """One round of local steps y <- y - eta_l * (g_i - c_i + c), and the server's step."""
        self.flat = reweighted(LAYOUT, self.flat, self.total or rule.total_weight, rule.total_weight)
        self.total = rule.total_weight
        server = ServerRound(rule, LAYOUT, self.flat)
        (x,), (c,) = (LAYOUT.array(self.flat, k) for k in (0, 1))
        after = dict(self.c_is)
        for i in taking_part:
            c_i, y = self.c_is.get(i, 0.0), x
            for _ in range(num_steps[i]):
                y = y - rule.eta_l * ((y - self.optima[i]) - c_i + c)
            after[i] = c_i - c + (x - y) / rule.step_sum(num_steps[i])
            before = numbers(c_i) if i in self.c_is else None
            values = server.reader.values(numbers(y, after[i]), before, num_steps[i])
            server.add(i, values, before, num_steps[i], self.examples[i])
        closed = server.close()
        self.flat, self.c_is = closed.flat, after
        return closed

    def weighted_mean(self, rule: Rules) -> float:
        """Of all c_i; zero stands for those who never took part."""
        weights = self.examples if rule.weighting == "examples" else [1] * len(self.examples)
        return sum(weights[i] * c_i for i, c_i in self.c_is.items()) / sum(weights)


@pytest.mark.parametrize("participation", ["all", "in turn"])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_x_comes_to_rest_where_the_weighted_loss_is_smallest(weighting: str, participation: str) -> None:
    """Two quadratics of 9 and 1 examples with optima 0 and 1: 0.1 by examples, 0.5 by clients."""
    clients = Quadratics([9, 1], [0.0, 1.0])
    rule = rules(algorithm="scaffold", num_clients=2, weighting=weighting, total_examples=10.0)
    for r in range(400):
        clients.round(rule, [0, 1] if participation == "all" or r < 2 else [r % 2], [3, 3])
    x, c = (LAYOUT.array(clients.flat, k)[0] for k in (0, 1))
    wanted = 0.1 if weighting == "examples" else 0.5
    if participation == "all":
        assert (x, c) == (pytest.approx(wanted, abs=1e-9), pytest.approx(0.0, abs=1e-9))
    assert c == pytest.approx(clients.weighted_mean(rule), abs=1e-12)


ROUNDS = st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    examples=st.lists(st.integers(1, 10_000), min_size=4, max_size=4),
    steps=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    weighting=st.sampled_from(["uniform", "examples"]),
    eta_g=st.sampled_from([1.0, 0.5]),
    rounds=ROUNDS,
)
def test_c_is_the_weighted_mean_of_all_c_i_whoever_takes_part(
    examples: list[int], steps: list[int], weighting: str, eta_g: float, rounds: list[set[int]]
) -> None:
    clients = Quadratics(examples, [0.0, 1.0, -2.0, 5.0])
    rule = rules(
        algorithm="scaffold",
        num_clients=4,
        weighting=weighting,
        total_examples=float(sum(examples)),
        eta_g=eta_g,
    )
    for taking_part in rounds:
        clients.round(rule, sorted(taking_part), steps)
        assert LAYOUT.array(clients.flat, 1)[0] == pytest.approx(clients.weighted_mean(rule), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(newcomer=st.integers(1, 10_000), expected=st.integers(1, 10_000), rounds=ROUNDS)
def test_c_stays_the_weighted_mean_when_a_newcomer_brings_another_number_of_examples(
    newcomer: int, expected: int, rounds: list[set[int]]
) -> None:
    """Seat 3 is free at first and counts with the shard that is meant for it."""
    clients = Quadratics([50, 7, 300, expected], [0.0, 1.0, -2.0, 5.0])
    by_examples: dict[str, Any] = {"algorithm": "scaffold", "num_clients": 4, "weighting": "examples"}
    for taking_part in rounds:
        rule = rules(**by_examples, total_examples=float(sum(clients.examples)))
        clients.round(rule, sorted(taking_part - {3}) or [0], [2] * 4)
    clients.examples[3] = newcomer
    rule = rules(**by_examples, total_examples=float(sum(clients.examples)))
    for taking_part in ({0}, {3}, {0, 1, 2, 3}):
        clients.round(rule, sorted(taking_part), [2] * 4)
        assert LAYOUT.array(clients.flat, 1)[0] == pytest.approx(clients.weighted_mean(rule), abs=1e-9)


def test_the_same_weights_of_all_clients_leave_c_as_it_is() -> None:
    flat = numbers(1.0, 2.0)
    assert reweighted(LAYOUT, flat, 10.0, 10.0) is flat
    halved = reweighted(LAYOUT, flat, 10.0, 20.0)
    assert [LAYOUT.array(halved, k)[0] for k in (0, 1)] == [1.0, 1.0]
    assert LAYOUT.array(flat, 1)[0] == 2.0


@pytest.mark.parametrize(
    ("changes", "steps", "source"),
    [
        ({}, [3, 3], CSource.FROM_MOVE),
        ({}, [3, 4], CSource.FROM_VARIATES),
        ({"eta_g": 0.5}, [3, 3], CSource.FROM_VARIATES),
        ({"weighting": "examples", "total_examples": 10.0}, [3, 3], CSource.FROM_VARIATES),
        ({"num_clients": 3}, [3, 3], CSource.FROM_VARIATES),
    ],
)
def test_c_comes_from_the_move_of_x_where_that_tells_it(
    changes: dict[str, Any], steps: list[int], source: CSource
) -> None:
    clients = Quadratics([9, 1], [0.0, 1.0])
    rule = rules(**({"algorithm": "scaffold", "num_clients": 2} | changes))
    assert clients.round(rule, [0, 1], steps).c_source is source


def test_c_comes_from_the_variates_if_one_does_not_follow_or_clients_saw_another_x() -> None:
    rule = rules(algorithm="scaffold", num_clients=1)
    for c_i, exact, source in [
        (10.0, True, CSource.FROM_MOVE),
        (10.0005, True, CSource.FROM_VARIATES),
        (10.0, False, CSource.FROM_VARIATES),
    ]:
        server = ServerRound(rule, LAYOUT, numbers(1.0, 0.0), exact=exact)
        server.add(0, numbers(0.0, c_i))
        closed = server.close()
        assert closed.c_source is source
        assert LAYOUT.array(closed.flat, 1)[0] == c_i


class _ByItsSteps(Scaffold):
    """An algorithm whose updates count by their steps, as FedNova's do."""

    def weight(self, client_weight: float, step_sum: float) -> float:
        """The fewer steps, the more."""
        return client_weight / step_sum


def test_an_algorithm_may_weigh_updates_by_their_steps_and_c_stays_the_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ALGORITHMS.built_in, "by-steps", _ByItsSteps())
    rule = rules(algorithm="by-steps", num_clients=2)
    server = ServerRound(rule, LAYOUT, numbers(0.0, 0.0))
    for i, steps in enumerate((1, 3)):
        server.add(i, numbers(float(i), 4.0 * i), steps=steps, checked=False)
    closed = server.close()
    assert LAYOUT.array(closed.flat, 0)[0] == pytest.approx(0.25), "weights 1 and 1/3 of y_i 0 and 1"
    assert LAYOUT.array(closed.flat, 1)[0] == pytest.approx(2.0)


def test_of_too_large_updates_less_counts_and_c_stays_the_mean_of_what_counts() -> None:
    rule = rules(algorithm="scaffold", num_clients=4, norm_bound=3.0)
    server = ServerRound(rule, LAYOUT, numbers(0.0, 0.0))
    for i, y in enumerate((1.0, 1.1, 3.5, 0.9)):
        server.add(i, numbers(y, -y / 0.1))
    closed = server.close()
    assert closed.counted == (0, 1, 2, 3)
    assert closed.clipped[2].times_usual == pytest.approx(3.5 / 1.05)
    share = closed.clipped[2].share
    assert 0 < share < 1
    c_i = LAYOUT.array(server.taken_back[2], 1)[0]
    assert c_i == pytest.approx(share * -35)
    assert LAYOUT.array(closed.flat, 0)[0] == pytest.approx((1.0 + 1.1 + 0.9 + share * 3.5) / (3 + share))
    assert LAYOUT.array(closed.flat, 1)[0] == pytest.approx((-10.0 - 11.0 - 9.0 + c_i) / 4)
    assert closed.c_source is CSource.FROM_VARIATES


def test_updates_that_are_not_too_large_are_read_once_and_not_held() -> None:
    server = ServerRound(
        rules(algorithm="scaffold", num_clients=2, norm_bound=3.0), LAYOUT, numbers(0.0, 0.0)
    )
    for i, y in enumerate((1.0, 1.1)):
        server.add(i, numbers(y, -y / 0.1))
    assert not server.step.holds_updates
    assert server.close().clipped == server.taken_back == {}


@pytest.mark.parametrize("c_i", [3e38, -10.02, 0.0])
def test_a_c_i_that_does_not_follow_from_y_i_is_refused(c_i: float) -> None:
    server = ServerRound(rules(algorithm="scaffold", num_clients=1), LAYOUT, numbers(1.0, 0.0))
    with pytest.raises(WireError, match="c_i must follow from y_i") as caught:
        server.add(0, numbers(2.0, c_i))
    assert (caught.value.fault, caught.value.tensor) == (Fault.BROKEN_CONTRACT, "w")


@pytest.mark.parametrize("control_codec", ["fp32", "fp16", "bf16", "int8", "int8-tensor"])
@settings(max_examples=20)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-6, 1.0, 1e4]))
def test_what_coding_and_rounding_change_of_c_i_is_not_taken_for_a_lie(
    control_codec: str, seed: int, scale: float
) -> None:
    random = np.random.default_rng(seed)
    rule = rules(control_codec=control_codec, num_clients=1)
    encoding = rule.update_encoding(MODEL)
    broadcast, update = MODEL.allocate(), MODEL.allocate()
    MODEL.array(broadcast, 0)[:] = random.normal(size=500)
    MODEL.array(update, 0)[:] = MODEL.array(broadcast, 0) + scale * random.normal(size=500)
    x, y = (MODEL.array(flat, 0) for flat in (broadcast, update))
    slightly = 1 + 1e-6 * random.normal(size=500)  # As other hardware would round.
    MODEL.array(update, 1)[:] = (x - y) / rule.step_sum(3) * slightly
    raw = encoding.encode_in_place(update, random, broadcast, None)
    reader = UpdateReader(rule, MODEL, broadcast)
    assert not reader.require_following(reader.values(raw, None, 3), None, 3)


def test_in_halves_too_c_i_has_to_follow() -> None:
    layout = Layout([TensorSpec("w", "bfloat16", (9,)), TensorSpec("w", "bfloat16", (9,), Purpose.CONTROL)])
    rule, update = rules(num_clients=1), layout.allocate()
    reader = UpdateReader(rule, layout, layout.allocate())
    y = np.linspace(-1, 1, 9)
    layout.array(update, 0)[:] = from_float64(y, "bfloat16")
    layout.array(update, 1)[:] = from_float64(-y / 0.1, "bfloat16")
    assert not reader.require_following(update, None, 1)
    layout.array(update, 1)[:] = from_float64(-2 * y / 0.1, "bfloat16")
    with pytest.raises(WireError, match="c_i must follow from y_i"):
        reader.require_following(update, None, 1)


def test_a_step_that_is_not_known_is_not_taken() -> None:
    for changes, message in [
        ({"weighting": "examples"}, "does not say how many clients, or examples of all clients"),
        ({"weighting": "loudness"}, "weights are one of uniform, examples, got 'loudness'"),
        ({"aggregation": "best"}, "must be mean, median or trimmed:F"),
    ]:
        with pytest.raises(ConfigError, match=message):
            ServerStep(rules(**changes), LAYOUT, numbers(0.0, 0.0))


MODEL = Layout([TensorSpec("w", "float32", (500,)), TensorSpec("w", "float32", (500,), Purpose.CONTROL)])


@pytest.mark.parametrize("changes", [{"norm_bound": 5.0}, {"aggregation": "median"}, {}], ids=str)
def test_every_update_is_decoded_once(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    rule = rules(num_clients=3, update_codec="int8", derived=True, **changes)
    decoded = []
    plain = codecs.Int8.decode

    def decode(codec: codecs.Int8, raw: Flat, out: Any) -> None:
        decoded.append(len(out))
        plain(codec, raw, out)

    encoding = rule.update_encoding(MODEL)
    broadcast = MODEL.allocate()
    server = ServerRound(rule, MODEL, broadcast)
    raws = []
    for i in range(3):
        y = MODEL.allocate()
        MODEL.array(y, 0)[:] = np.random.default_rng(i).normal(size=500)
        sent = y[: encoding.layout.num_bytes]
        raws.append(encoding.encode_in_place(sent, np.random.default_rng(0), broadcast, None))
    monkeypatch.setattr(codecs.Int8, "decode", decode)
    for i, raw in enumerate(raws):
        server.add(i, server.reader.values(raw, None, 2), steps=2)
    assert server.close().counted == (0, 1, 2)
    assert decoded == [500] * 3


def test_values_that_came_as_they_are_are_not_copied() -> None:
    raw = MODEL.allocate()
    assert UpdateReader(rules(), MODEL, MODEL.allocate()).values(raw, None, 1) is raw
    room = MODEL.allocate()
    derived = UpdateReader(rules(derived=True), MODEL, MODEL.allocate())
    opening = room[: MODEL.part(Purpose.MODEL).num_bytes]
    MODEL.array(room, 0)[:] = 1.0
    assert derived.values(opening, None, 1, room) is room
    assert np.all(MODEL.array(room, 1) == np.float32(-1.0) / np.float32(0.1)), "c_i+ stands behind y_i"


@pytest.mark.parametrize("derived", [False, True])
def test_an_update_that_is_not_finite_does_not_get_in(derived: bool) -> None:
    reader = UpdateReader(rules(derived=derived), MODEL, MODEL.allocate())
    raw = MODEL.allocate()
    MODEL.array(raw, 0)[3] = np.nan
    with pytest.raises(WireError) as caught:
        reader.values(raw[: MODEL.part(Purpose.MODEL).num_bytes] if derived else raw, None, 1)
    assert (caught.value.fault, caught.value.tensor) == (Fault.NOT_FINITE, "w")


def test_h_of_the_round_before_is_left_alone() -> None:
    layout = Layout([TensorSpec("w", "float64", (1,))])
    rule = rules(algorithm="feddyn", prox_weight=0.5, num_clients=1)
    first = ServerRound(rule, layout, numbers(1.0))
    first.add(0, numbers(3.0))
    after = first.close()
    assert after.h[0][0] == -1.0, "h - alpha * (y_i - x)"
    assert layout.array(after.flat, 0)[0] == 5.0, "y_i - h / alpha"
    second = ServerRound(rule, layout, after.flat, h=after.h)
    second.add(0, numbers(5.0))
    assert second.close().h[0][0] == after.h[0][0] == -1.0
