"""The theorem's check: the mathematics is the project's own, the constants are right, the bound holds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import fedlab
from fedlab.theory import bound, proof
from fedlab.theory.floors import resting, resting_distance
from fedlab.theory.method import State, Steps, next_state, run
from fedlab.theory.order import Fraction
from fedlab.theory.problem import SHARES, Float64, Mask, constants, last_share, outside
from fedlab.theory.quadratic import BETA, MU, Disagreement, Quadratic, quadratics
from fedlab.theory.softmax import STRONG, VANISHING, Softmax, digits
from tests import oracle
from tests.test_cli import invoke

FEATURES, CLASSES = 6, 3


def masks(dimension: int, shares: tuple[float, ...] = SHARES) -> Mask:
    return np.stack([last_share(dimension, share) for share in shares])


def points(num_clients: int, examples: int) -> tuple[Float64, npt.NDArray[np.int64]]:
    random = np.random.default_rng(5)
    labels = random.integers(CLASSES, size=(num_clients, examples))
    centres = random.standard_normal((CLASSES, FEATURES))
    return centres[labels] + random.standard_normal((num_clients, examples, FEATURES)), labels


def walked(problem: Softmax, svr: Mask, steps: Steps, rounds: int) -> State:
    state = State.first(1, problem.num_clients, np.zeros(CLASSES * (FEATURES + 1)))
    for _ in range(rounds):
        state = next_state(problem, state, svr[None], steps)
    return state


def plain(problem: Quadratic, lanes: int, steps: Steps, rounds: int, *, scaffold: bool) -> Float64:
    """FedAvg, or SCAFFOLD, written down without masks."""
    x = np.zeros((lanes, len(problem.optimum)))
    c_is = np.zeros((lanes, problem.num_clients, x.shape[1]))
    random = np.random.default_rng(3)
    for _ in range(rounds):
        c = c_is.mean(1, keepdims=True)
        y = np.repeat(x[:, None], problem.num_clients, axis=1)
        for _ in range(steps.local_steps):
            g = problem.gradients(y, random)
            y = y - steps.eta_l * (g + (c - c_is) if scaffold else g)
        if scaffold:
            c_is = c_is - c + (x[:, None] - y) / (steps.local_steps * steps.eta_l)
        x = x + steps.eta_g * (y - x[:, None]).mean(1)
    return x


@pytest.mark.parametrize(("share", "scaffold"), [(0.0, False), (1.0, True)])
def test_p_0_is_fedavg_and_p_1_scaffold_to_the_bit(share: float, scaffold: bool) -> None:
    problem = quadratics(5, seed=1, sigma=0.3)
    steps = Steps(local_steps=4, eta_l=0.05, eta_g=1.3)
    ours = run(problem, masks(20, (share,) * 3), steps, 15, random=np.random.default_rng(3)).last.x
    assert ours.tobytes() == plain(problem, 3, steps, 15, scaffold=scaffold).tobytes()


@pytest.mark.parametrize("svr", [(), ("bias",), ("weight",), ("weight", "bias")])
def test_a_run_is_the_oracles(svr: tuple[str, ...]) -> None:
    features, labels = points(3, 12)
    problem = Softmax(features, np.eye(CLASSES)[labels], l2=0.0)
    mask = np.concatenate([np.full(18, "weight" in svr), np.full(3, "bias" in svr)])
    last = walked(problem, mask, Steps(local_steps=4, eta_l=0.3, eta_g=1.4), 6)
    x, c = oracle.train(
        first_linear,
        [(torch.from_numpy(f), torch.from_numpy(k)) for f, k in zip(features, labels, strict=True)],
        svr,
        rounds=6,
        local_steps=4,
        eta_l=0.3,
        eta_g=1.4,
    )
    theirs = np.concatenate([x["weight"].numpy().ravel(), x["bias"].numpy()])
    np.testing.assert_allclose(last.x[0], theirs, rtol=0, atol=1e-14)
    for name, part in (("weight", slice(0, 18)), ("bias", slice(18, 21))):
        mean = last.c_is[0, :, part].mean(0)
        np.testing.assert_allclose(mean, c[name].numpy().ravel() if name in c else 0 * mean, atol=1e-14)


def first_linear() -> torch.nn.Linear:
    """A linear classifier in float64 whose first weights are 0."""
    model = torch.nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model


def test_a_run_is_that_of_a_simulated_federation(tmp_path: Path) -> None:
    features, labels = points(3, 12)
    flat = (torch.from_numpy(features.reshape(36, 6)), torch.from_numpy(labels.reshape(36)))
    shards = tmp_path / "shards.json"
    shards.write_text(json.dumps({"clients": [list(range(12 * i, 12 * i + 12)) for i in range(3)]}))
    simulated = fedlab.simulate(
        model=lambda num_classes: first_linear(),
        dataset=lambda split: flat,
        algorithm="fedpvr",
        svr=("bias",),
        partition=str(shards),
        num_clients=3,
        rounds=4,
        local_steps=5,
        batch_size=None,
        eta_l=0.2,
        eta_g=1.2,
        norm_bound=None,
        validation=0.0,
        run_dir=tmp_path / "run",
    )
    problem = Softmax(features, np.eye(CLASSES)[labels], l2=0.0)
    mask = np.arange(21) >= 18
    last = walked(problem, mask, Steps(local_steps=5, eta_l=0.2, eta_g=1.2), 4)
    x = simulated.state_dict()
    theirs = np.concatenate([x["weight"].numpy().ravel(), x["bias"].numpy()])
    np.testing.assert_allclose(last.x[0], theirs, rtol=0, atol=1e-14)


def test_the_optimum_and_the_constants_are_what_was_asked_for() -> None:
    svr = last_share(20, 0.5)
    for place, share in ((Disagreement.INSIDE, 0.0), (Disagreement.OUTSIDE, 1.0)):
        problem = quadratics(6, seed=2, place=place, svr=svr, zeta=0.7, sigma=0.2)
        found = constants(problem, stochastic=True)
        gradient = problem.gradients(np.broadcast_to(problem.optimum, (1, 6, 20)))[0].mean(0)
        assert np.abs(gradient).max() < 1e-13
        assert found.zeta2 == pytest.approx(0.49)
        assert outside(problem, svr) == pytest.approx(0.49 * share, abs=1e-14)
        assert [found.distance, found.sigma2] == pytest.approx([1.0, 0.04])
        eigenvalues = np.linalg.eigvalsh(problem.curvatures)
        assert [eigenvalues[:, 0].min(), eigenvalues[:, -1].max()] == pytest.approx([MU, BETA])


@pytest.mark.parametrize("l2", [STRONG, VANISHING])
def test_softmax_regression_is_what_it_says(l2: float) -> None:
    problem = digits(5, seed=0, l2=l2)
    x = problem.optimum + 0.1 * np.random.default_rng(0).standard_normal(len(problem.optimum))
    lane = np.broadcast_to(x, (1, 5, len(x)))
    gradient = problem.gradients(lane)[0].mean(0)
    toward = np.random.default_rng(1).standard_normal(len(x))
    up, down = problem.values(np.stack([x + 1e-5 * toward, x - 1e-5 * toward]))
    assert (up - down) / 2e-5 == pytest.approx(gradient @ toward, rel=1e-6)
    at_optimum = np.broadcast_to(problem.optimum, (1, 5, len(x)))
    assert np.linalg.norm(problem.gradients(at_optimum)[0].mean(0)) < 1e-12
    assert (problem.values(x[None]) > problem.values(problem.optimum[None])).all()
    moved = problem.gradients(lane) - problem.gradients(at_optimum)
    assert np.linalg.norm(moved[0], axis=1).max() <= problem.beta * np.linalg.norm(x - problem.optimum)
    random = np.random.default_rng(2)
    off = [problem.gradients(lane, random)[0] - problem.gradients(lane)[0] for _ in range(400)]
    assert np.square(off).sum(-1).mean(0).max() == pytest.approx(problem.noise(x), rel=0.1)


@pytest.mark.parametrize("eta_g", [1.0, math.sqrt(6)])
@pytest.mark.parametrize("local_steps", [1, 5])
@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_no_run_is_above_the_bound(sigma: float, local_steps: int, eta_g: float) -> None:
    for seed in range(3):
        problem = quadratics(6, seed, sigma=sigma)
        found = constants(problem, stochastic=True)
        steps = Steps.of(bound.LARGEST / problem.beta, local_steps, eta_g)
        trace = run(problem, masks(20), steps, 100, random=np.random.default_rng(seed))
        for lane, svr in enumerate(masks(20)):
            ours, finer = (
                kind(found, outside(problem, svr), steps) for kind in (bound.corrected, bound.sharper)
            )
            mean = bound.weights(found, steps, 100) @ trace.errors[:-1, lane]
            assert (
                mean
                <= bound.mean_error(found, finer, steps, 100)
                <= bound.mean_error(found, ours, steps, 100)
            )
            assert trace.distances[-1, lane] <= bound.distance(found, finer, steps, 100)


def test_one_round_makes_the_progress_that_the_lemmas_promise() -> None:
    """Phi of the docstring, from random states, with C of the variates that are really there."""
    problem = quadratics(6, seed=0)
    found, steps = constants(problem), Steps.of(bound.LARGEST / BETA, 5, 1.0)
    random = np.random.default_rng(0)
    at_optimum = problem.gradients(np.broadcast_to(problem.optimum, (1, 6, 20)))
    svr = masks(20)
    state = State(
        problem.optimum + random.standard_normal((5, 20)),
        np.where(svr[:, None], at_optimum + random.standard_normal((5, 6, 20)), 0.0),
    )
    after = next_state(problem, state, svr, steps)
    gap = problem.values(state.x) - problem.values(problem.optimum[None])

    def phi(which: State, weight: float) -> Float64:
        c = np.square(which.c_is - at_optimum).sum(-1).mean(1)
        return np.asarray(np.square(which.x - problem.optimum).sum(-1) + weight * steps.effective**2 * c)

    for kind in (bound.corrected, bound.sharper):
        for lane in range(5):
            p = kind(found, outside(problem, svr[lane]), steps)
            eta = steps.effective
            promised = (1 - eta * MU / 2) * phi(state, p.weight)[lane] - p.gain * eta * gap[lane]
            assert phi(after, p.weight)[lane] <= promised + eta**2 * p.loss


def test_at_rest_nothing_moves_and_the_distance_follows_zeta() -> None:
    svr = last_share(20, 0.5)
    steps = Steps.of(0.1, 5, 1.0)
    problem, twice = quadratics(4, seed=0), quadratics(4, seed=0, zeta=2.0)
    state = resting(problem, svr, steps)
    after = next_state(problem, state, svr[None], steps)
    np.testing.assert_allclose(after.x, state.x, rtol=0, atol=1e-13)
    np.testing.assert_allclose(after.c_is, state.c_is, rtol=0, atol=1e-12)
    far = run(problem, svr[None], steps, 600).last.x
    np.testing.assert_allclose(far, state.x, rtol=0, atol=1e-12)
    assert resting_distance(twice, svr, steps) == pytest.approx(4 * resting_distance(problem, svr, steps))
    assert resting_distance(problem, last_share(20, 1.0), steps) < 1e-24
    inside = quadratics(4, seed=0, place=Disagreement.INSIDE, svr=svr)
    assert resting_distance(inside, svr, steps) < 1e-24 < resting_distance(inside, last_share(20, 0), steps)


def test_with_one_local_step_p_changes_nothing() -> None:
    """The corrections of all clients cancel: the bound has zeta there, x has not."""
    trace = run(quadratics(5, seed=0), masks(20), Steps(local_steps=1, eta_l=0.1, eta_g=1.5), 50)
    np.testing.assert_allclose(trace.last.x, np.tile(trace.last.x[:1], (5, 1)), rtol=0, atol=1e-13)


def convex_variates(t: float) -> float:
    """As in `proof`: of C_{r-1}, in units of eta^2, with mu = beta. Printed: eta mu / 2 - 13/20."""
    return 16 + 108 * t - 18 * (1 - t / 2)


def nonconvex_drift(t: float, weight: float) -> float:
    """As in `proof`: of E_r, in units of eta beta^2, with `weight` beta eta^2 Theta_r on the left."""
    return (4 + weight) * t - 0.5


def test_the_convex_lemma_closes_with_other_constants() -> None:
    t = 1 / 80
    assert -0.0917 < proof.convex_error(t) < -0.0915
    assert proof.convex_error(1 / 152) > -1 > proof.convex_error(1 / 153)
    found = constants(quadratics(4, seed=0))
    gain = bound.corrected(found, 0.0, Steps.of(t / BETA, 5, 1.0)).gain
    assert gain == pytest.approx(-proof.convex_error(t))
    assert convex_variates(t) == pytest.approx(9 * t - 13 / 20)
    assert convex_variates(t) < 0
    assert convex_variates(26 / 20) > 0, "the printed limit 26/(20 mu) alone would not do"


def test_the_nonconvex_lemma_closes_with_other_constants() -> None:
    s = 1 / 26
    assert math.isclose(60 / 26**2, 15 / 169)
    assert all(15 / 169 - t > 0 for t in np.linspace(1e-6, s, 100)), "printed as <= 0"
    assert proof.nonconvex_variates(s) == pytest.approx(60 / 26 - 1)
    assert proof.nonconvex_variates(s, eta_g=1.52) < 0 < proof.nonconvex_variates(s, eta_g=1.51)
    assert -0.325 < proof.nonconvex_gradient(s) < -0.323
    weight = 8 + 60 / 29
    assert proof.nonconvex_variates(1 / 29, weight=weight) == pytest.approx(0.0)
    assert nonconvex_drift(1 / 29, weight) < 0 < nonconvex_drift(1 / 28, 8 + 60 / 28)


def test_the_second_proposition_misses_a_square() -> None:
    """A function of slope 2: A-4 holds with 2, the proposition as printed with p = 0 would say 16 <= 4."""
    squared_norm, assumed = 4.0, 2.0
    assert squared_norm <= assumed**2
    smallest_as_printed = squared_norm
    assert not smallest_as_printed**2 <= assumed**2
    assert math.sqrt(squared_norm) ** 2 <= assumed**2


def test_the_nonconvex_drift_lemma_needs_a_bound_for_every_client() -> None:
    """A-4 bounds a mean at one x; the lemma uses it where each client has its own y_i."""

    def slope(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    together = max((slope(x) ** 2 + slope(-x) ** 2) / 2 for x in np.linspace(-50, 50, 1001))
    assert together <= 0.5 + 1e-12
    assert (slope(50.0) ** 2 + slope(50.0) ** 2) / 2 > 0.99


def test_what_is_printed_as_f_vanishes_with_the_rounds() -> None:
    """C_0 is zeta^2 for c_i = 0, and at most 2 beta F + zeta_{1-p}^2 if c_i starts at the gradient of x^0."""
    problem, svr = quadratics(5, seed=3), last_share(20, 0.5)
    found = constants(problem)
    ends = [
        problem.gradients(np.broadcast_to(x, (1, 5, 20)))[0] for x in (0 * problem.optimum, problem.optimum)
    ]
    first = np.square(np.where(svr, ends[0], 0.0) - ends[1]).sum(-1).mean()
    assert np.square(ends[1]).sum(-1).mean() == pytest.approx(found.zeta2)
    assert first <= 2 * found.beta * found.gap + outside(problem, svr)
    steps = Steps.of(bound.LARGEST / BETA, 5, 1.0)
    ours = bound.corrected(found, 0.0, steps)
    convex = type(found)(**{**vars(found), "mu": 0.0})
    errors = [bound.mean_error(convex, ours, steps, rounds) for rounds in (100, 10_000)]
    assert errors[1] == pytest.approx(errors[0] / 100)


def test_wilsons_interval_holds_its_fraction() -> None:
    for held in range(11):
        low, high = Fraction(held=held, of=10).interval
        assert 0 <= low <= held / 10 <= high <= 1
        assert high - low < 0.61


@pytest.mark.slow
def test_the_command_writes_a_page_and_prints_what_is_in_it(tmp_path: Path) -> None:
    flags = ["--clients", "3", "--rounds", "10", "--seeds", "2", "--out", str(tmp_path), "--json"]
    result = invoke("fedlab", "theory", "--problem", "softmax", *flags)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found == json.loads((tmp_path / "study.json").read_text())
    assert [sweep["problem"] for sweep in found["sweeps"]] == ["softmax, L2 0.1"] * 2 + ["softmax, L2 0.0001"]
    for cell in (cell for sweep in found["sweeps"] for cell in sweep["cells"]):
        assert (cell["error_bound"] is None) == (cell["t"] > 1 / 79)
        assert cell["error_bound"] is None or cell["mean_error"] <= cell["error_bound"]
    assert "softmax" in (tmp_path / "theory.html").read_text()


@pytest.mark.slow
def test_the_table_of_quadratics_shows_the_predicted_order(tmp_path: Path) -> None:
    flags = ["--problem", "quadratic", "--rounds", "50", "--seeds", "3", "--out", str(tmp_path)]
    result = invoke("fedlab", "theory", *flags)
    assert result.exit_code == 0, result.output
    assert "| everywhere | at rest, t = 1/80 |" in result.output
    assert "report: " in result.output
    orders = json.loads((tmp_path / "study.json").read_text())["orders"]
    at_rest = [each for each in orders if each["when"].startswith("at rest")]
    assert all(each["between"]["held"] == 3 for each in at_rest if each["place"] != "outside S_svr only")


def test_wrong_numbers_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for flags in (["--clients", "1"], ["--problem", "cubic"], ["--out", str(tmp_path / "file")]):
        result = invoke("fedlab", "theory", *flags)
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1].startswith("Error: ")
