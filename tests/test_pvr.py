"""The client's mathematics, by its properties."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedclient.pvr import next_c_i, sgd_step, svr_step


def gradients(y: Tensor, steps: int) -> list[Tensor]:
    """Some gradient that depends on where y is."""
    return [y.sin() * (k + 1) for k in range(steps)]


def test_next_c_i_is_the_mean_raw_gradient_of_the_round() -> None:
    """Alg. I line 11 telescopes: whatever c and c_i were, the new c_i is the average of the K gradients."""
    torch.manual_seed(0)
    x, c, c_i = (torch.randn(5, dtype=torch.float64) for _ in range(3))
    y = x.clone()
    seen, sizes = [], [0.1, 0.05, 0.2, 0.1]
    for k, eta_l in enumerate(sizes):
        g = y.sin() * (k + 1)
        seen.append(eta_l * g)
        svr_step([y], [g], [c - c_i], eta_l)

    (new,) = next_c_i([c_i], [c], [x], [y], sum(sizes))

    torch.testing.assert_close(new, torch.stack(seen).sum(0) / sum(sizes))


def test_without_correction_the_variance_reduced_step_is_plain_sgd() -> None:
    y, g = torch.randn(4), torch.randn(4)
    reduced, plain = y.clone(), y.clone()
    svr_step([reduced], [g], [torch.zeros(4)], 0.3)
    sgd_step([plain], [g], [], 0.3, 0.0)
    assert torch.equal(reduced, plain)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_step_is_torchs_sgd(momentum: float) -> None:
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(3, dtype=torch.float64))
    y, velocity = [parameter.detach().clone()], [torch.zeros(3, dtype=torch.float64)]
    optimiser = torch.optim.SGD([parameter], lr=0.1, momentum=momentum)
    for k in range(5):
        g = torch.cos(y[0] + k)
        parameter.grad = g.clone()
        optimiser.step()
        sgd_step(y, [g], velocity, 0.1, momentum)
    torch.testing.assert_close(y[0], parameter.detach(), rtol=0, atol=1e-15)


def test_empty_sets_are_no_steps() -> None:
    svr_step([], [], [], 0.1)
    sgd_step([], [], [], 0.1, 0.9)
    assert next_c_i([], [], [], [], 1.0) == []
