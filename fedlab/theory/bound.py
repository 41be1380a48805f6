"""The theorem's bounds with every constant written out, for convex f_i, a constant step and c_i = 0 at first.

With eta = K eta_l eta_g, t = eta beta and Phi_r = E||x^r - x*||^2 + A eta^2 C_r, one round gives

    Phi_r <= (1 - eta mu / 2) Phi_{r-1} - k eta (E f(x^{r-1}) - f*) + eta^2 c

from which both bounds follow by adding rounds up. C_0 = zeta^2, because all c_i start at 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedlab.theory.method import Steps
from fedlab.theory.problem import Constants

LARGEST = 1 / 80
"""t up to which the theorem speaks of convex functions."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What one round gives: A, k and c above."""

    weight: float
    gain: float
    loss: float


def corrected(found: Constants, zeta2_outside: float, steps: Steps) -> Progress:
    """The paper's lemma with its A and c, and the k of its proof: 2 - 152 t - 54 t^2 / eta_g^2, not 1."""
    t, g2 = steps.effective * found.beta, steps.eta_g**2
    noise = (
        found.sigma2 / (steps.local_steps * found.num_clients) * (24 + 117 * found.num_clients / (80 * g2))
    )
    return Progress(weight=18, gain=2 - 152 * t - 54 * t**2 / g2, loss=36 * zeta2_outside + noise)


def sharper(found: Constants, zeta2_outside: float, steps: Steps) -> Progress:
    """The same lemmas, one used less: the c - c_i of all clients cancel, so x moves by the gradients alone.

    E||x^r - x^{r-1}||^2 <= 4 eta^2 beta^2 E_r + 8 eta^2 beta (f - f*) + 2 eta^2 sigma^2 / (K N) then has no
    C_{r-1}, and A need only outweigh what the drift E_r has of it, 108 t / eta_g^2.
    """
    t, g2 = steps.effective * found.beta, steps.eta_g**2
    weight = 108 * t / g2 / (1 - steps.effective * found.mu / 2)
    noise = found.sigma2 / (steps.local_steps * found.num_clients) * (2 + 117 * t * found.num_clients / g2)
    gain = 2 - 8 * t - 8 * weight * t - 54 * t**2 / g2
    return Progress(weight=weight, gain=gain, loss=2 * weight * zeta2_outside + noise)


def weights(found: Constants, steps: Steps, rounds: int) -> list[float]:
    """w_r of the mean over rounds that the theorem speaks of, for x^0 to x^{R-1}; they add up to 1."""
    shrink = 1 - steps.effective * found.mu / 2
    powers = [shrink ** (rounds - 1 - r) for r in range(rounds)]
    return [power / sum(powers) for power in powers]


def mean_error(found: Constants, progress: Progress, steps: Steps, rounds: int) -> float:
    """Bound of the weighted mean of f(x^r) - f* over r = 0 .. R - 1."""
    eta, shrink = steps.effective, 1 - steps.effective * found.mu / 2
    total = sum(shrink ** -(r + 1) for r in range(rounds))
    return _first(found, progress, eta) / (progress.gain * eta * total) + eta * progress.loss / progress.gain


def distance(found: Constants, progress: Progress, steps: Steps, rounds: int) -> float:
    """Bound of E||x^R - x*||^2."""
    eta, shrink = steps.effective, 1 - steps.effective * found.mu / 2
    added = sum(shrink**r for r in range(rounds)) * eta**2 * progress.loss
    return shrink**rounds * _first(found, progress, eta) + added


def floor(found: Constants, progress: Progress, steps: Steps) -> float:
    """The same after any number of rounds, for mu > 0."""
    return 2 * steps.effective * progress.loss / found.mu


def _first(found: Constants, progress: Progress, eta: float) -> float:
    return found.distance + progress.weight * eta**2 * found.zeta2
