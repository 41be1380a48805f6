"""How the clients of a round drifted apart, in numbers of the paper's analysis. All are squares of norms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClientDrift:
    """What one client measures of its steps and tells: four numbers."""

    drift_svr: float
    """Mean over the steps of ||y_i - x||^2 on S_svr, after each step."""
    drift_sgd: float
    """The same on all other parameters of x."""
    noise_svr: float | None
    """Mean over pairs of successive steps of ||g' - g||^2 / 2 on S_svr; None if there was one step only."""
    noise_sgd: float | None
    """The same on all other parameters of x."""


@dataclass(frozen=True, kw_only=True)
class DriftRecord:
    """With --record-drift: the paper's E_r, sigma^2 and zeta^2 of a round, as far as they can be known."""

    clients: int
    """Updates that tell the numbers of `drift` and `noise`; others come from earlier releases."""
    drift: float | None
    """E_r: mean over these clients and their steps k = 1 ... K_i of ||y_i,k - x||^2."""
    drift_svr: float | None
    """The part of E_r on S_svr."""
    noise: float | None
    """Estimates sigma^2: mean over these clients of half the squared distance between the gradients of
    successive minibatches. It has the change of the full gradient over one step in it too, so it is too large
    by that, and not zero for full batches."""
    noise_svr: float | None
    """The part on S_svr."""
    zeta_svr: float | None
    """Estimates zeta^2 on S_svr: mean over the updates of ||c_i - mean c_i||^2, with the c_i of the round,
    which is the mean gradient of the client's steps; null where S_svr is empty."""
    zeta_sgd: float | None
    """Estimates zeta^2 of the other parameters (the paper's zeta_{1-p}): the same with x - y_i, divided by
    the sum of step sizes, for c_i. With FedProx or FedDyn this has their own terms in it. Null where S_svr is
    everything."""
