"""The runs that tables and figures ask for, at one scale and with so many seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from common.algorithms import ALGORITHMS, PROX
from fedlab.engine.cells import Cell
from fedlab.engine.outcome import Outcome
from fedlab.experiments.bench import Bench
from fedlab.experiments.methods import DERIVED, METHODS
from fedlab.paper.columns import COLUMNS, Column
from fedlab.paper.data import Shards
from fedlab.paper.scales import Scale, Settings

BYTES_ROUNDS = 3
"""Rounds after which what a round sends has stopped to change: c is sent from the second on."""

NO_BOUND = "none"
"""The paper takes the plain mean. A bound on updates would be another algorithm wherever it acts, and derived
variates would be sent in such a round."""


@dataclass(frozen=True)
class Wanted:
    """A run that an item needs."""

    cell: Cell
    settings: Settings = field(compare=False)
    """What its flags and preset add up to."""
    shards: Shards | None = None
    """What must be written before it starts."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Asks for runs and tells what came of them."""

    scale: Scale
    seeds: int
    bench: Bench

    def federated(self, column: Column, method: str, seed: int, **changes: object) -> Wanted:
        """A run of a column over all rounds."""
        flags = self.scale.federated(column, method, seed) | changes
        if "local_steps" in changes:
            flags.pop("local_epochs", None)
        return self._wanted(flags, column, column.alpha, seed)

    def every_seed(self, column: Column, method: str, **changes: object) -> list[Wanted]:
        """The same with every seed."""
        return [self.federated(column, method, seed, **changes) for seed in range(self.seeds)]

    def until(self, column: Column, method: str) -> list[Wanted]:
        """Runs whose last x is the one that table 3 looks at, with every seed."""
        return self.every_seed(column, method, rounds=self.scale.at_round)

    def scored(self, column: Column, method: str) -> list[Wanted]:
        """Runs that have an accuracy for table 3, with every seed.

        With a constant step size the first 80 rounds of 100 are those of a run of 80, to the bit. A schedule
        over 80 rounds is another than one over 100, and has runs of its own.
        """
        constant = self.described(column, method)["schedule"] == "constant"
        return self.every_seed(column, method) if constant else self.until(column, method)

    def traffic_of(self, column: Column, method: str) -> Wanted:
        """A run that tells what a derived method sends.

        It trains as the method does whose variates are sent, so its accuracies are those. How many steps a
        client takes between two messages does not change their size, and neither do the shards: one step will
        do, and one run for all alphas.
        """
        first = next(c for c in COLUMNS.values() if (c.dataset, c.model) == (column.dataset, column.model))
        return self.federated(first, method, 0, rounds=BYTES_ROUNDS, local_steps=1, eval_every=0)

    def centralised(self, column: Column, eta_l: float, momentum: float, seed: int) -> Wanted:
        """The pooled baseline with one setting of its grid; the same for every alpha."""
        flags = self.scale.centralised(column, eta_l, momentum, seed)
        return self._wanted(flags, column, None, seed)

    def heading(self, column: Column) -> str:
        """What a column is here, and what it stands for: a picture may be seen without its page."""
        if not self.scale.stand_ins:
            return column.heading
        return f"{self.scale.stand_in(column).words}, a={column.alpha:g} (for {column.short})"

    def described(self, column: Column, method: str) -> dict[str, str]:
        """The settings in which methods differ, as a table shows them."""
        found = self.scale.resolved(self.scale.federated(column, DERIVED.get(method, method), 0))
        algorithm = ALGORITHMS[METHODS[method]["algorithm"]]
        prox = algorithm.prox_setting
        return {
            "eta_l": str(found["eta_l"]),
            "schedule": str(found.get("schedule", "constant")),
            "momentum": str(found.get("momentum", 0.0)),
            "mu or alpha": "-" if prox is None else str(found.get(prox, PROX[prox])),
        }

    def _wanted(self, flags: dict[str, object], column: Column, alpha: float | None, seed: int) -> Wanted:
        settings = self.scale.resolved(flags)
        stand_in = self.scale.stand_in(column)
        shards = None
        if stand_in.examples is not None:
            clients = int(str(settings["num_clients"]))
            shards = Shards(
                dataset=stand_in.dataset,
                examples=stand_in.examples,
                num_clients=clients,
                alpha=alpha,
                seed=seed,
            )
            flags = flags | {"partition": str(shards.path(self.bench.runs))}
        flags = flags | {"norm_bound": NO_BOUND, "data_dir": self.bench.data_dir}
        return Wanted(Cell.of(flags), settings, shards)

    def run(self, wanted: Sequence[Wanted]) -> None:
        """Runs what has not run yet."""
        for shards in dict.fromkeys(each.shards for each in wanted if each.shards is not None):
            shards.write(self.bench.runs, self.bench.data_dir)
        self.bench.run([each.cell for each in wanted])

    def outcome(self, wanted: Wanted) -> Outcome:
        """What came of a run."""
        return self.bench.outcome(wanted.cell)

    def outcomes(self, wanted: Sequence[Wanted]) -> list[Outcome]:
        """The same of several."""
        return [self.outcome(each) for each in wanted]
