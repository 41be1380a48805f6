"""The order that the theorem predicts, on random problems: SCAFFOLD, then FedPVR, then FedAvg."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlab.theory import bound
from fedlab.theory.floors import resting_distance
from fedlab.theory.method import Steps, run
from fedlab.theory.problem import Problem, last_share, outside
from fedlab.theory.quadratic import DIMENSION, Disagreement, quadratics
from fedlab.theory.softmax import STRONG, digits
from fedlab.theory.sweep import BEYOND

SHARE = 0.5
LOCAL_STEPS = 5
NOTHING = 1e-20
"""Squared distances below this are rounding."""
SURE = 1.96


@dataclass(frozen=True, kw_only=True)
class Fraction:
    """How many of so many, with Wilson's 95 % interval."""

    held: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """From and to."""
        share, z2 = self.held / self.of, SURE**2
        middle = share + z2 / (2 * self.of)
        half = SURE * math.sqrt(share * (1 - share) / self.of + z2 / (4 * self.of**2))
        return max(0.0, (middle - half) / (1 + z2 / self.of)), min(1.0, (middle + half) / (1 + z2 / self.of))


@dataclass(frozen=True, kw_only=True)
class Order:
    """On how many problems the order held; squared distances of p = 0, 1/2 and 1."""

    problem: str
    place: str
    when: str
    zeta_ratio: float
    """Median of zeta_{1-p}^2 / zeta^2 at p = 1/2."""
    predicted: str
    fedpvr_before_fedavg: Fraction
    scaffold_before_fedpvr: Fraction
    """Or as near as rounding allows."""
    between: Fraction
    """Both of these."""
    ratio: float
    """Median distance of FedPVR over that of FedAvg."""


PREDICTED = {
    Disagreement.BOTH: "SCAFFOLD < FedPVR < FedAvg",
    Disagreement.INSIDE: "SCAFFOLD = FedPVR < FedAvg",
    Disagreement.OUTSIDE: "SCAFFOLD < FedPVR = FedAvg",
}


def orders(num_clients: int, rounds: int, seeds: int) -> list[Order]:
    """Quadratics: at rest with the theorem's and with a larger step, and after R rounds from x = 0."""
    rows = []
    for place in Disagreement:
        svr = np.stack([last_share(DIMENSION, share) for share in (0.0, SHARE, 1.0)])
        problems = [quadratics(num_clients, seed, place=place, svr=svr[1]) for seed in range(seeds)]
        small, large = (Steps.of(t / problems[0].beta, LOCAL_STEPS, 1.0) for t in (bound.LARGEST, BEYOND))
        found = {
            "at rest, t = 1/80": [[resting_distance(q, mask, small) for mask in svr] for q in problems],
            "at rest, t = 1/2": [[resting_distance(q, mask, large) for mask in svr] for q in problems],
            f"round {rounds}, t = 1/80": [run(q, svr, small, rounds).distances[-1] for q in problems],
        }
        ratios = [outside(q, svr[1]) / outside(q, svr[0]) for q in problems]
        rows += [_order("quadratic", place, when, ratios, d) for when, d in found.items()]
    return rows


def softmax_order(num_clients: int, rounds: int, seeds: int) -> Order:
    """Softmax regression with L2 over splits of the digits, with the larger step."""
    problems: list[Problem] = [digits(num_clients, seed, STRONG) for seed in range(seeds)]
    svr = np.stack([last_share(len(problems[0].optimum), share) for share in (0.0, SHARE, 1.0)])
    distances = [
        run(each, svr, Steps.of(BEYOND / each.beta, LOCAL_STEPS, 1.0), rounds).distances[-1]
        for each in problems
    ]
    ratios = [outside(each, svr[1]) / outside(each, svr[0]) for each in problems]
    return _order("softmax, L2 0.1", Disagreement.BOTH, f"round {rounds}, t = 1/2", ratios, distances)


def _order(
    problem: str,
    place: Disagreement,
    when: str,
    ratios: Sequence[float],
    distances: Sequence[Sequence[float]],
) -> Order:
    table = np.maximum(np.array(distances), NOTHING)
    fedavg, fedpvr, scaffold = table.T
    first, second = fedpvr < fedavg, scaffold <= fedpvr
    return Order(
        problem=problem,
        place=place.value,
        when=when,
        zeta_ratio=float(np.median(ratios)),
        predicted=PREDICTED[place],
        fedpvr_before_fedavg=Fraction(held=int(first.sum()), of=len(table)),
        scaffold_before_fedpvr=Fraction(held=int(second.sum()), of=len(table)),
        between=Fraction(held=int((first & second).sum()), of=len(table)),
        ratio=float(np.median(fedpvr / fedavg)),
    )
