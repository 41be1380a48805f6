"""The runs of a sweep before any of them has run."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fedlab.engine.cells import Cell
from fedlab.sweep.plan import Plan, PlannedRun, named


@dataclass(frozen=True, kw_only=True)
class Step:
    """One run, and what it is for."""

    purpose: str
    """prepare, search or report."""
    method: str
    at: str
    """The point of the grid."""
    seed: int
    searched: tuple[str, ...]
    """Settings that the search has yet to choose; their first values stand in."""
    command: str
    """That makes the run, but for its folder."""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """One line."""
        yet = f" (chosen by the search: {', '.join(self.searched)})" if self.searched else ""
        where = ", ".join(filter(None, [self.method, self.at, f"seed {self.seed}"]))
        return f"{self.purpose}: {where}: {self.command}{yet}"


def preview(plan: Plan) -> list[Step]:
    """All runs in their order."""
    first = plan.first()
    steps = [] if first is None else [_step("prepare", "", "", 0, first)]
    steps += [_of("search", run) for run in plan.search()]
    return steps + [_of("report", run, tuple(plan.sweep.searched(run.method))) for run in plan.report()]


def _of(purpose: str, run: PlannedRun, searched: tuple[str, ...] = ()) -> Step:
    return _step(purpose, run.method, named(run.point), run.seed, run.cell, searched)


def _step(purpose: str, method: str, at: str, seed: int, cell: Cell, searched: tuple[str, ...] = ()) -> Step:
    command = " ".join(["fedlab", *cell.command()])
    return Step(purpose=purpose, method=method, at=at, seed=seed, searched=searched, command=command)
