"""Metrics of a confusion matrix: rows are right classes, columns the classes with the highest score.

They are those of scikit-learn, to the bit: a class that does not occur has no recall, and one that neither
occurs nor is found is left out of the mean over classes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Confusion = npt.NDArray[np.int64]
Cells = Iterable[tuple[int, int, int]]


def dense(cells: Cells, num_classes: int) -> Confusion:
    """The matrix of [right class, found class, examples]."""
    matrix = np.zeros((num_classes, num_classes), np.int64)
    for right, found, count in cells:
        matrix[right, found] = count
    return matrix


def cells(matrix: Confusion) -> tuple[tuple[int, int, int], ...]:
    """The same the other way round, without zeros, in the order of rows."""
    rows, columns = np.nonzero(matrix)
    return tuple(zip(rows.tolist(), columns.tolist(), matrix[rows, columns].tolist(), strict=True))


def accuracy(matrix: Confusion) -> float | None:
    """Share of examples whose class is found."""
    total = int(matrix.sum())
    return int(np.trace(matrix)) / total if total else None


def recalls(matrix: Confusion) -> list[float | None]:
    """By class: the share of its examples that is found."""
    return _shares(np.diagonal(matrix), matrix.sum(axis=1))


def f1s(matrix: Confusion) -> list[float | None]:
    """By class: the harmonic mean of precision and recall."""
    return _shares(2 * np.diagonal(matrix), matrix.sum(axis=1) + matrix.sum(axis=0))


def balanced_accuracy(matrix: Confusion) -> float | None:
    """Mean recall of the classes that occur."""
    return _mean(recalls(matrix))


def macro_f1(matrix: Confusion) -> float | None:
    """Mean F1 of the classes that occur or are found."""
    return _mean(f1s(matrix))


def _shares(parts: Confusion, wholes: Confusion) -> list[float | None]:
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return [part / whole if whole else None for part, whole in pairs]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
