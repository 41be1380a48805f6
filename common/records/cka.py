"""cka.jsonl: how alike the models of clients were, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common import json_files
from common.records.base import Count, Positive, Record

CKA = "cka.jsonl"
Matrix = tuple[tuple[float | None, ...], ...]
"""A row and a column for each client."""


@dataclass(frozen=True, kw_only=True)
class CkaRecord(Record):
    """A line of cka.jsonl: the similarity of the clients' models in one round, before they became x."""

    round: Positive
    """Number of the round, from 1."""
    estimator: str
    """`debiased` or `biased`, see --cka-estimator."""
    images: Count
    """Test images that the models were compared on."""
    minibatches: Count
    """Parts of nearly equal size into which they were split."""
    clients: tuple[str, ...]
    """Names of the clients whose models were compared, the first ten of the round at most."""
    layers: dict[str, Matrix]
    """CKA by layer: a row and a column for each of these clients, in their order; null where not defined."""

    def means(self) -> dict[str, float | None]:
        """Mean over all pairs of clients, by layer; none for a client alone."""
        return {name: _mean(matrix) for name, matrix in self.layers.items() if len(matrix) > 1}


def _mean(matrix: Matrix) -> float | None:
    pairs = [value for k, row in enumerate(matrix) for value in row[k + 1 :]]
    known = [value for value in pairs if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if len(known) == len(pairs) else None


def read_cka(run_dir: Path) -> Iterator[CkaRecord]:
    """The rounds in which models were compared; none in a run without --cka, or of an earlier release."""
    path = run_dir / CKA
    return json_files.read_lines(path, CkaRecord) if path.exists() else iter(())
