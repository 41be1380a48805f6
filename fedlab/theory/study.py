"""Everything that `fedlab theory` computes."""

from __future__ import annotations

from dataclasses import dataclass

from fedlab.theory.floors import Floor, Noise, floors, noises
from fedlab.theory.order import Order, orders, softmax_order
from fedlab.theory.proof import Claim, claims
from fedlab.theory.quadratic import quadratics
from fedlab.theory.softmax import STRONG, VANISHING, digits
from fedlab.theory.sweep import ProblemRuns, sweep

FEWER = 10
"""Softmax regressions run so many times fewer rounds, because each costs so much more."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked for."""

    quadratic: bool
    softmax: bool
    clients: int
    rounds: int
    seeds: int

    @property
    def softmax_rounds(self) -> int:
        """R of the softmax regressions."""
        return max(self.rounds // FEWER, 1)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What came out."""

    sweeps: list[ProblemRuns]
    orders: list[Order]
    floors: list[Floor]
    noises: list[Noise]
    claims: list[Claim]


def study(plan: Question) -> Findings:
    """Runs it."""
    sweeps, found, rests, noisy = [], [], [], []
    if plan.quadratic:
        problem = quadratics(plan.clients, seed=0, sigma=1.0)
        sweeps += [sweep(problem, plan.rounds, stochastic=noise) for noise in (False, True)]
        found += orders(plan.clients, plan.rounds, plan.seeds)
        rests, noisy = floors(plan.clients), noises()
    if plan.softmax:
        strong, weak = (digits(plan.clients, 0, l2) for l2 in (STRONG, VANISHING))
        sweeps += [sweep(strong, plan.softmax_rounds, stochastic=noise) for noise in (False, True)]
        sweeps.append(sweep(weak, plan.softmax_rounds, stochastic=False))
        found.append(softmax_order(plan.clients, plan.softmax_rounds, max(plan.seeds // 2, 1)))
    return Findings(sweeps=sweeps, orders=found, floors=rests, noises=noisy, claims=claims())
