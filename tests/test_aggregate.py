"""The server's step: against direct computation, and independent of everything it should not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.processes import cores
from common.server_step import aggregate as aggregates
from common.server_step.aggregate import Aggregate
from common.server_step.moves import BLOCK
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec
from common.tensors.torch_views import tensor_view
from tests.rules import rules


def layout_of(dtype: str, n: int = 5) -> Layout:
    """A parameter with a variate, a parameter without, a statistic and a counter."""
    return Layout(
        [
            TensorSpec("w", dtype, (n,)),
            TensorSpec("v", dtype, (2, 2)),
            TensorSpec("mean", dtype, (3,), Purpose.BUFFER),
            TensorSpec("count", "int64", (), Purpose.BUFFER),
            TensorSpec("w", dtype, (n,), Purpose.CONTROL),
        ]
    )


def random_flat(layout: Layout, seed: int) -> Flat:
    """Any values."""
    flat = layout.allocate()
    generator = torch.Generator().manual_seed(seed)
    for index, spec in enumerate(layout.specs):
        view = tensor_view(layout, flat, index)
        if spec.dtype == "int64":
            view.fill_(seed * 3)
        else:
            view.copy_(torch.randn(spec.shape, generator=generator))
    return flat


def values(layout: Layout, flat: Flat, index: int) -> torch.Tensor:
    """A tensor in float64."""
    return tensor_view(layout, flat, index).double()


def result(aggregate: Aggregate, flat: Flat, num_clients: int) -> Flat:
    """The next x, buffers and c with uniform weights."""
    return aggregate.result(flat, rules(num_clients=num_clients), {})[0]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [5.0, 1.0, 10.0]])
def test_x_buffers_and_c_follow_their_rules(dtype: str, weights: list[float]) -> None:
    layout, eta_g, total = layout_of(dtype), 0.7, 40.0
    variates = layout.part(Purpose.CONTROL)
    down = random_flat(layout, 0)
    ups = [random_flat(layout, seed) for seed in (1, 2, 3)]
    c_is = [None, random_flat(variates, 4), random_flat(variates, 5)]

    aggregate = Aggregate(layout, down)
    for up, c_i, weight in zip(ups, c_is, weights, strict=True):
        aggregate.add(up, c_i, weight, weight)
    rule = rules(eta_g=eta_g, weighting="examples", total_examples=total)
    after, _ = aggregate.result(down, rule, {})

    w = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    rounding = {"float64": 1e-14, "float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for index, spec in enumerate(layout.specs):
        base = values(layout, down, index)
        if spec.purpose is Purpose.CONTROL:
            old = [torch.zeros(5) if c is None else values(variates, c, 0) for c in c_is]
            moves = [values(layout, up, index) - o for up, o in zip(ups, old, strict=True)]
            new = base + sum(w_i * move for w_i, move in zip(weights, moves, strict=True)) / total
        else:
            mean = sum(w_i * (values(layout, up, index) - base) for w_i, up in zip(w, ups, strict=True))
            new = base + (eta_g if spec.purpose is Purpose.MODEL else 1.0) * mean
        if spec.name == "count":
            assert values(layout, after, index) == new.round()
        else:
            torch.testing.assert_close(values(layout, after, index), new, rtol=rounding, atol=rounding)


def test_equal_updates_leave_exactly_that_update() -> None:
    layout = layout_of("float64")
    up = random_flat(layout, 1)
    aggregate = Aggregate(layout, layout.allocate())
    for _ in range(4):
        aggregate.add(up, None, 1.0, 1.0)
    assert result(aggregate, layout.allocate(), 4).tobytes() == up.tobytes()


def test_tensors_larger_than_a_block_are_whole() -> None:
    layout = Layout([TensorSpec("w", "float32", (2 * BLOCK + 3,))])
    up = layout.allocate()
    layout.array(up, 0)[:] = np.arange(2 * BLOCK + 3) % 1000
    aggregate = Aggregate(layout, layout.allocate())
    aggregate.add(up, None, 1.0, 1.0)
    assert result(aggregate, layout.allocate(), 1).tobytes() == up.tobytes()


def test_updates_give_the_same_bits_in_one_pass_and_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of("float32")
    down = random_flat(layout, 0)

    def after(together: int) -> tuple[bytes, dict[str, float]]:
        monkeypatch.setattr(aggregates, "TOGETHER", together)
        aggregate = Aggregate(layout, down)
        for seed in range(1, 6):
            aggregate.add(random_flat(layout, seed), None, 1.0 + seed, 1.0)
        return result(aggregate, down, 5).tobytes(), aggregate.drift_diversity()

    assert after(2) == after(64)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_update_without_weight_is_in_no_sum_whatever_it_holds(place: int) -> None:
    layout = layout_of("float32")
    down, beyond = random_flat(layout, 0), random_flat(layout, 9)
    layout.array(beyond, 0)[:] = np.inf
    counting = [(random_flat(layout, seed), 1.0 + seed) for seed in (1, 2)]

    def after(updates: list[tuple[Flat, float]]) -> bytes:
        aggregate = Aggregate(layout, down)
        for up, weight in updates:
            aggregate.add(up, None, weight, min(weight, 1.0))
        return result(aggregate, down, 2).tobytes()

    assert after([*counting[:place], (beyond, 0.0), *counting[place:]]) == after(counting)


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of("float32", n=19 * BLOCK + 5)
    down, ups = random_flat(layout, 0), [random_flat(layout, seed) for seed in range(1, 6)]

    def closed(threads: int) -> tuple[bytes, object, object]:
        monkeypatch.setattr(cores, "num_threads", lambda: threads)
        aggregate = Aggregate(layout, down)
        for weight, up in enumerate(ups):
            aggregate.add(up, None, float(weight), 1.0)
        after = result(aggregate, down, len(ups))
        return after.tobytes(), aggregate.norms(), aggregate.drift_diversity()

    assert 19 * BLOCK * len(ups) >= aggregates.WORTH_SPREADING, "it is worth other threads"
    assert closed(3) == closed(1)


def test_partial_participation_divides_the_change_of_c_by_all_clients() -> None:
    """One of ten answers: c moves by a tenth of the change of its c_i and stays the mean of all ten."""
    layout = layout_of("float64")
    variates = layout.part(Purpose.CONTROL)
    c_is = [random_flat(variates, seed) for seed in range(10)]
    down = layout.allocate()
    c_index = layout.indices(Purpose.CONTROL)[0]
    tensor_view(layout, down, c_index).copy_(torch.stack([values(variates, c, 0) for c in c_is]).mean(0))
    up = random_flat(layout, 77)
    aggregate = Aggregate(layout, down)
    aggregate.add(up, c_is[3], 1.0, 1.0)
    after_round = result(aggregate, down, 10)
    after = [values(layout, up, c_index) if i == 3 else values(variates, c, 0) for i, c in enumerate(c_is)]
    torch.testing.assert_close(
        values(layout, after_round, c_index), torch.stack(after).mean(0), rtol=0, atol=1e-15
    )
    assert torch.equal(values(layout, after_round, 0), values(layout, up, 0))


def test_drift_diversity_is_the_papers_quotient() -> None:
    layout = layout_of("float32")
    down = random_flat(layout, 0)
    ups = [random_flat(layout, seed) for seed in (1, 2, 3)]
    aggregate = Aggregate(layout, down)
    for up in ups:
        aggregate.add(up, None, 1.0, 1.0)
    result(aggregate, down, 3)
    moves = [values(layout, up, 0) - values(layout, down, 0) for up in ups]
    xi = sum(m.square().sum() for m in moves) / torch.stack(moves).sum(0).square().sum()
    assert aggregate.drift_diversity()["w"] == pytest.approx(xi.item(), rel=1e-12)


def test_clients_that_move_alike_have_a_diversity_of_one_over_n() -> None:
    layout = layout_of("float64")
    aggregate = Aggregate(layout, layout.allocate())
    for _ in range(4):
        aggregate.add(random_flat(layout, 1), None, 1.0, 1.0)
    result(aggregate, layout.allocate(), 4)
    assert aggregate.drift_diversity() == {"w": pytest.approx(0.25), "v": pytest.approx(0.25)}


def test_tensors_that_stay_put_have_no_diversity() -> None:
    layout = layout_of("float64")
    aggregate = Aggregate(layout, layout.allocate())
    aggregate.add(layout.allocate(), None, 1.0, 1.0)
    assert aggregate.drift_diversity() == {}


def test_there_is_no_result_without_updates() -> None:
    layout = layout_of("float32")
    with pytest.raises(ValueError, match="no update"):
        result(Aggregate(layout, layout.allocate()), layout.allocate(), 3)
