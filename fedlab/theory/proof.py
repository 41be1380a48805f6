"""Coefficients in the last lines of the proofs, as functions of t = eta beta; a lemma needs them <= 0.

They are what adding up the lines before gives, with beta_p = beta, the worst case.
"""

from __future__ import annotations

from dataclasses import dataclass


def convex_error(t: float, eta_g: float = 1.0) -> float:
    """Of f - f*, in units of eta. Printed: -1."""
    return 8 * t - 2 + 144 * t + 54 * t**2 / eta_g**2


def nonconvex_gradient(t: float, eta_g: float = 1.0) -> float:
    """Of ||grad f||^2, in units of eta. Printed: -1."""
    return 4 * t - 0.5 + 15 * t**2 / eta_g**2


def nonconvex_variates(t: float, eta_g: float = 1.0, weight: float = 9.0) -> float:
    """Of Theta_{r-1}, in units of beta eta^2. Printed with 15/169 eta for 60 t^2 eta, and called <= 0."""
    return 8 + 60 * t / eta_g**2 - weight


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A line of a proof."""

    where: str
    printed: str
    computed: str
    remedy: str


def claims() -> list[Claim]:
    """Where the printed proofs need other constants."""
    t, s = 1 / 80, 1 / 26
    return [
        Claim(
            where="convex lemma, f - f*, eta = 1/(80 beta)",
            printed="-eta",
            computed=f"{convex_error(t):.3f} eta",
            remedy=f"-eta holds from 1/(153 beta) on: {convex_error(1 / 153):.3f} eta",
        ),
        Claim(
            where="convex lemma, C of the round before",
            printed="eta mu/2 - 13/20, eta <= 26/(20 mu)",
            computed="9 eta mu - 13/20, eta <= 13/(180 mu)",
            remedy="none: eta <= 1/(80 beta) implies it",
        ),
        Claim(
            where="non-convex lemma, Theta of the round before, eta_g = 1",
            printed="<= 0",
            computed=f"+{nonconvex_variates(s):.3f} beta eta^2",
            remedy=f"eta_g >= {(60 / 26) ** 0.5:.2f}; or 1/(29 beta) and {8 + 60 / 29:.2f} for 9",
        ),
        Claim(
            where="non-convex lemma, squared gradient, eta = 1/(26 beta)",
            printed="-eta",
            computed=f"{nonconvex_gradient(s):.3f} eta",
            remedy="a constant of the rate",
        ),
        Claim(
            where="general convex rate, last term",
            printed="F",
            computed="18 eta C_0 / R, C_0 = zeta^2 as c_i = 0",
            remedy="zeta^2 / (beta R); F / R if c_i starts at the gradient",
        ),
    ]
