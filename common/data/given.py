"""Examples that a program has in memory: arrays, tensors, or a data set of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from common.errors import DataError

Examples = Sequence[Any] | TorchDataset[Any]
"""(images, labels), (images, labels, class_names), or what gives an image and a label for each index."""


def arrays(examples: Examples) -> tuple[Any, ...]:
    """Images, labels and perhaps class names, as a data set's factory gives them."""
    if isinstance(examples, TorchDataset):
        count = len(examples)  # type: ignore[arg-type]
        pairs = [examples[k] for k in range(count)]
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise DataError("expected a data set with an image and a label for each index")
        images, labels = zip(*pairs, strict=True)
        return np.stack([_array(image) for image in images]), np.array([int(label) for label in labels])
    if isinstance(examples, str | Mapping) or len(examples) not in (2, 3):
        raise DataError(f"expected (images, labels) or a torch Dataset, got {type(examples).__name__}")
    images, labels, *names = examples
    return _array(images), _array(labels), *names


def _array(values: Any) -> np.ndarray[Any, Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
