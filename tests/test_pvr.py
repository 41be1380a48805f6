"""The client's mathematics, by its properties."""

from __future__ import annotations

import torch

from common.algorithms import ALGORITHMS
from fedclient.training.pvr import direction, momentum_step, step


def random_tensors(count: int) -> list[torch.Tensor]:
    """A few float64 vectors."""
    return [torch.randn(5, dtype=torch.float64) for _ in range(count)]


def test_the_next_variate_is_the_mean_raw_gradient_of_the_round() -> None:
    """Alg. I line 11 telescopes: whatever c and c_i were, the new c_i is the average of the K gradients."""
    fedpvr = ALGORITHMS["fedpvr"]
    x, c, c_i = random_tensors(3)
    y = x.clone()
    seen, sizes = [], [0.1, 0.05, 0.2, 0.1]
    for k, eta_l in enumerate(sizes):
        g = y.sin() * (k + 1)
        seen.append(eta_l * g)
        step([y], direction([g], [fedpvr.correction(c_i, c)], [y], [x], 0.0), eta_l)

    new = fedpvr.next_variate(c_i, c, x, y, sum(sizes), 0.0)

    torch.testing.assert_close(new, torch.stack(seen).sum(0) / sum(sizes))


def test_without_correction_and_pull_the_direction_is_the_gradient() -> None:
    g, y, x = random_tensors(3)
    assert direction([g], [], [y], [x], 0.0)[0] is g
    assert torch.equal(direction([g], [torch.zeros(5)], [y], [x], 0.0)[0], g)


def test_the_pull_is_the_gradient_of_the_proximal_term() -> None:
    g, x = random_tensors(2)
    y = torch.randn(5, dtype=torch.float64, requires_grad=True)
    mu = 0.3
    proximal = mu / 2 * (y - x).square().sum()
    (term,) = torch.autograd.grad(proximal, y)
    torch.testing.assert_close(direction([g], [], [y.detach()], [x], mu)[0], g + term)


def test_feddyn_at_its_fixed_point_has_the_local_gradient_in_l_i() -> None:
    """Where a client's regularised loss is stationary, l_i becomes the gradient of its own loss there."""
    feddyn, alpha = ALGORITHMS["feddyn"], 0.2
    x, target, l_i = random_tensors(3)
    # The client's loss is ||y - target||^2 / 2, so y - target + alpha * (y - x) - l_i = 0 at its optimum.
    y = (target + alpha * x + l_i) / (1 + alpha)
    towards = direction([y - target], [feddyn.correction(l_i, None)], [y], [x], alpha)[0]
    torch.testing.assert_close(towards, torch.zeros_like(towards))
    torch.testing.assert_close(feddyn.next_variate(l_i, None, x, y, 1.0, alpha), y - target)


def test_momentum_step_is_torchs_sgd() -> None:
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(3, dtype=torch.float64))
    y, velocity = [parameter.detach().clone()], [torch.zeros(3, dtype=torch.float64)]
    optimiser = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    for k in range(5):
        g = torch.cos(y[0] + k)
        parameter.grad = g.clone()
        optimiser.step()
        momentum_step(y, [g], velocity, 0.1, 0.9)
    torch.testing.assert_close(y[0], parameter.detach(), rtol=0, atol=1e-15)


def test_empty_sets_are_no_steps() -> None:
    step([], [], 0.1)
    momentum_step([], [], [], 0.1, 0.9)
