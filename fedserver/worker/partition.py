"""Splits a training set over clients by Dirichlet(alpha), the way the published experiments did.

The procedure is that of Lin et al. (NeurIPS 2020), which the FedPVR paper uses, down to the order of the
draws from numpy's `RandomState`, so that shards can be compared with published ones. It draws again until no
client has less than half its share; where that would go on for too long the best draw is repaired by moving
examples from the largest shard to the smallest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.errors import ConfigError

Indices = npt.NDArray[np.int64]

MAX_ATTEMPTS = 5_000
"""Draws before the repair; published settings that end at all end well before."""


def dirichlet_partition(
    labels: Indices, num_clients: int, alpha: float, seed: int, *, equal: bool = True
) -> list[Indices]:
    """Shards of example indices, one per client; small alpha means few classes per client.

    `equal` re-cuts the concatenated shards into blocks of one size, as the published code does; the remainder
    is left out and shards then mix two neighbours' classes. Without it sizes differ and every example is
    used.
    """
    if num_clients < 1:
        raise ConfigError(f"--num-clients must be at least 1, got {num_clients}")
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ConfigError(f"--alpha must be positive, got {alpha}")
    if len(labels) < num_clients:
        raise ConfigError(
            f"--num-clients is {num_clients}, but there are only {len(labels)} examples to share"
        )
    random = np.random.RandomState(seed)
    rows = np.stack([np.arange(len(labels)), labels], axis=1)
    random.shuffle(rows)
    num_classes = int(labels.max()) + 1
    shards: list[Indices] = []
    start = 0
    sizes = _group_sizes(num_clients, num_classes, alpha)
    for number, size in enumerate(sizes):
        end = len(rows) if number == len(sizes) - 1 else start + int(size / num_clients * len(rows))
        shards += _split_group(rows[start:end], size, num_classes, alpha, random)
        start = end
    return _equal_cut(shards) if equal else shards


def _group_sizes(num_clients: int, num_classes: int, alpha: float) -> list[int]:
    """Clients per group; the published code splits large federations so that the draw can succeed."""
    size = num_clients
    if num_clients == 40 and alpha in (0.1, 0.01):
        size = 20 if alpha == 0.1 else 10
    elif num_clients == 100 and num_classes == 10:
        size = 10
    elif num_clients == 100 and num_classes == 100 and alpha == 0.01:
        size = 20
    return [size] * (num_clients // size)


def _split_group(
    rows: Indices, num_clients: int, num_classes: int, alpha: float, random: np.random.RandomState
) -> list[Indices]:
    by_class = [rows[rows[:, 1] == k, 0] for k in range(num_classes)]
    enough = int(0.5 * len(rows) / num_clients)
    best: list[Indices] = []
    best_smallest = -1
    for _ in range(MAX_ATTEMPTS):
        cuts, sizes = _draw([len(members) for members in by_class], num_clients, alpha, random)
        if sizes.min() > best_smallest:
            best, best_smallest = cuts, int(sizes.min())
        if best_smallest >= enough:
            break
    pieces = [np.split(members, cut) for members, cut in zip(by_class, best, strict=True)]
    shards = [np.concatenate(client) for client in zip(*pieces, strict=True)]
    return _repaired(shards, max(enough, 1))


def _draw(
    class_sizes: list[int], num_clients: int, alpha: float, random: np.random.RandomState
) -> tuple[list[Indices], Indices]:
    """Where to cut each class, and how many examples each client gets by that."""
    share = sum(class_sizes) / num_clients
    sizes = np.zeros(num_clients, np.int64)
    cuts = []
    for class_size in class_sizes:
        # With a tiny alpha the draw itself can underflow to 0/0.
        p = np.nan_to_num(random.dirichlet(np.repeat(alpha, num_clients)), posinf=0.0) * (sizes < share)
        # A tiny alpha can put all weight on clients that are full already: then the emptiest take the class.
        p = p / p.sum() if p.sum() > 0 else (sizes <= sizes.min()) / np.sum(sizes <= sizes.min())
        cut = (np.cumsum(p) * class_size).astype(np.int64)[:-1]
        sizes += np.diff(np.concatenate([[0], cut, [class_size]]))
        cuts.append(cut)
    return cuts, sizes


def _repaired(shards: list[Indices], enough: int) -> list[Indices]:
    """Moves the last examples of the largest shard to the smallest one until all have enough."""
    while min(map(len, shards)) < enough:
        small = min(range(len(shards)), key=lambda j: len(shards[j]))
        large = max(range(len(shards)), key=lambda j: len(shards[j]))
        moved = min(enough - len(shards[small]), len(shards[large]) - enough)
        shards[small] = np.concatenate([shards[small], shards[large][-moved:]])
        shards[large] = shards[large][:-moved]
    return shards


def _equal_cut(shards: list[Indices]) -> list[Indices]:
    together = np.concatenate(shards)
    size = len(together) // len(shards)
    return [together[j * size : (j + 1) * size] for j in range(len(shards))]


def class_counts(shards: list[Indices], labels: Indices, num_classes: int) -> Indices:
    """Examples of each class (column) in each shard (row)."""
    return np.stack([np.bincount(labels[shard], minlength=num_classes) for shard in shards])
