"""The input transform of a task: a function of the client's own code that the run names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from common import plugin
from common.data.datasets import IMAGE_DTYPES, Dataset
from common.errors import DataError, place_in_plugin


def transformed(dataset: Dataset, name: str) -> Dataset:
    """The examples after module:function(examples) -> examples; their labels stay."""
    function = plugin.load(name)
    expected = (
        f"transform {name}: expected function(examples) -> as many examples, of {', '.join(IMAGE_DTYPES)}"
    )
    try:
        images = np.asarray(function(dataset.images.copy()))
    except Exception as error:
        raise DataError(f"{expected}, got {error!r}{place_in_plugin(error)}") from error
    if images.ndim < 2 or len(images) != len(dataset.labels) or str(images.dtype) not in IMAGE_DTYPES:
        raise DataError(f"{expected}, got {images.dtype} {images.shape} for {len(dataset.labels)}")
    return replace(dataset, images=np.ascontiguousarray(images))
