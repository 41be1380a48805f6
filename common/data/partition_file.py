"""Ready-made shards in a file: `{"clients": [[index, ...], ...]}`, indices into the training split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.atomic import replacing
from common.errors import DataError

Indices = npt.NDArray[np.int64]


def write_partition(path: Path, shards: list[Indices]) -> None:
    """Writes shards as `{"clients": [[index, ...], ...]}`."""
    with replacing(path) as scratch:
        scratch.write_text(json.dumps({"clients": [shard.tolist() for shard in shards]}) + "\n")


def read_partition(path: Path, num_clients: int, num_examples: int) -> list[Indices]:
    """Shards from a partition file, checked against the run that wants to use them."""
    expected = (
        f'{path}: expected JSON {{"clients": [[index, ...], ...]}}, with a list of indices for each client'
    )
    try:
        found: Any = json.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{expected}; this is no JSON: {error}") from error
    if not isinstance(found, dict) or "clients" not in found:
        got = "an object without `clients`" if isinstance(found, dict) else f"a {type(found).__name__}"
        raise DataError(f"{expected}; got {got}")
    clients = found["clients"]
    if not isinstance(clients, list) or len(clients) != num_clients:
        got = str(len(clients)) if isinstance(clients, list) else type(clients).__name__
        raise DataError(f"{path}: expected shards for {num_clients} clients (--num-clients), got {got}")
    return [_checked_shard(path, j, shard, num_examples) for j, shard in enumerate(clients)]


def _checked_shard(path: Path, j: int, shard: object, num_examples: int) -> Indices:
    if not isinstance(shard, list) or not shard:
        raise DataError(f"{path}: shard {j} must be a list of at least one index")
    for index in shard:
        if type(index) is not int or not 0 <= index < num_examples:
            raise DataError(f"{path}: shard {j} has index {index!r}; expected 0 to {num_examples - 1}")
    return np.array(shard, np.int64)
