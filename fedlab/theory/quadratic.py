"""Random quadratics f_i(x) = 1/2 (x - b_i)^T A_i (x - b_i) of chosen conditioning and heterogeneity."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from fedlab.theory.problem import Float64, Mask

MU, BETA = 1.0, 5.0
"""Every A_i has these as its smallest and largest eigenvalue."""
DIMENSION = 20


class Disagreement(StrEnum):
    """Where clients disagree at the optimum."""

    BOTH = "everywhere"
    INSIDE = "in S_svr only"
    OUTSIDE = "outside S_svr only"


class Quadratic:
    """N quadratics, with Gaussian noise of variance sigma^2 where gradients are stochastic."""

    name = "quadratic"
    mu, beta = MU, BETA

    def __init__(self, curvatures: Float64, centers: Float64, sigma: float = 0.0) -> None:
        """A, clients x d x d, and b, clients x d."""
        self.curvatures, self.centers, self.sigma = curvatures, centers, sigma
        self.num_clients = len(centers)
        pull = np.einsum("nij,nj->i", curvatures, centers)
        self.optimum: Float64 = np.linalg.solve(curvatures.sum(0), pull)

    def gradients(self, y: Float64, random: np.random.Generator | None = None) -> Float64:
        """A_i (y_i - b_i), and noise."""
        # One product of matrices a client, with lanes as columns, instead of one with a vector a lane.
        columns = (y - self.centers).transpose(1, 2, 0)
        exact: Float64 = (self.curvatures @ columns).transpose(2, 0, 1)
        if random is None or not self.sigma:
            return exact
        scale = self.sigma / np.sqrt(y.shape[-1])
        return np.asarray(exact + scale * random.standard_normal(y.shape[-2:]))

    def values(self, x: Float64) -> Float64:
        """f(x) by lane."""
        away = x[:, None, :] - self.centers
        pulls = self.gradients(np.broadcast_to(x[:, None, :], away.shape))
        return np.asarray(0.5 * (away * pulls).sum(-1).mean(1))

    def noise(self, x: Float64) -> float:
        """sigma^2, the same everywhere."""
        return self.sigma**2


def quadratics(
    num_clients: int,
    seed: int,
    *,
    place: Disagreement = Disagreement.BOTH,
    svr: Mask | None = None,
    zeta: float = 1.0,
    sigma: float = 0.0,
    dimension: int = DIMENSION,
) -> Quadratic:
    """Random A_i, an optimum with D = 1, and gradients of mean square zeta^2 there, in the given place.

    grad f_i(x*) = A_i (x* - b_i), so b_i follows from the gradient that is wanted. `svr` says where S_svr is.
    """
    random = np.random.default_rng(seed)
    turns = np.linalg.qr(random.standard_normal((num_clients, dimension, dimension)))[0]
    spectra = np.exp(random.uniform(np.log(MU), np.log(BETA), (num_clients, dimension)))
    spectra[:, 0], spectra[:, 1] = MU, BETA
    curvatures = np.einsum("nij,nj,nkj->nik", turns, spectra, turns)
    optimum = _of_length(random.standard_normal(dimension), 1.0)
    wanted = random.standard_normal((num_clients, dimension))
    if place is not Disagreement.BOTH and svr is not None:
        wanted[:, ~svr if place is Disagreement.INSIDE else svr] = 0.0
    wanted -= wanted.mean(0)
    wanted = _of_length(wanted, zeta * np.sqrt(num_clients)) if zeta else 0 * wanted
    centers = optimum - np.linalg.solve(curvatures, wanted[..., None])[..., 0]
    return Quadratic(curvatures, centers, sigma)


def _of_length(vector: Float64, length: float) -> Float64:
    return np.asarray(vector * (length / np.linalg.norm(vector)))
