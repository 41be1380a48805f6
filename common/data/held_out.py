"""What a client keeps aside of its examples. Pure: the same examples and seed make the same split.

Clients hold it out, and a server that has the data finds the same examples.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common import seeds

Indices = npt.NDArray[np.int64]


def held_out_count(share: float, examples: int) -> int:
    """Examples that a client of so many keeps for validation; it trains on one at least."""
    return min(round(share * examples), examples - 1)


def split(examples: int, count: int, seed: int, index: int) -> tuple[Indices, Indices]:
    """Indices that client `index` trains on, and the `count` that it holds out: the same in every round."""
    if not count:
        return np.arange(examples), np.arange(0)
    order = seeds.stream(seed, seeds.VALIDATION, index).permutation(examples)
    return np.sort(order[count:]), np.sort(order[:count])


def stratified(labels: Indices, count: int, random: np.random.Generator) -> tuple[Indices, Indices]:
    """Indices to train on, and `count` indices that are held out, with as much of each class as of all.

    What is left over by rounding goes to the classes that have lost most by it.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    shares = sizes * count / max(len(labels), 1)
    taken = np.floor(shares).astype(np.int64)
    order = np.argsort(taken - shares, kind="stable")
    taken[order[: count - int(taken.sum())]] += 1
    chosen = [
        random.permutation(np.flatnonzero(labels == k))[:n] for k, n in zip(classes, taken, strict=True)
    ]
    held_out = np.sort(np.concatenate([*chosen, np.zeros(0, np.int64)]))
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out
