"""What a client keeps aside of its examples. Pure: the same examples and seed make the same split."""

from __future__ import annotations

import numpy as np

from common.data.datasets import Labels


def stratified(labels: Labels, count: int, random: np.random.Generator) -> tuple[Labels, Labels]:
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
