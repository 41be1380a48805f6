"""Flip and crop: every result is a window of the padded image or its mirror."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from common.errors import ConfigError
from fedclient.training.augment import PADDING, Augmenter


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_every_image_is_a_crop_of_its_padded_self_or_of_the_mirror(dtype: torch.dtype) -> None:
    images = torch.arange(3 * 2 * 8 * 6).reshape(3, 2, 8, 6).to(dtype)
    indices = torch.tensor([2, 0, 0, 1] * 30)
    out = Augmenter(images).batch(indices, np.random.default_rng(0))
    assert out.shape == (120, 2, 8, 6)
    assert out.dtype == dtype
    kinds = set()
    for index, crop in zip(indices.tolist(), out, strict=True):
        found = None
        for flipped in (False, True):
            padded = F.pad(images[index].flip(2) if flipped else images[index], (PADDING,) * 4)
            for dy in range(2 * PADDING + 1):
                for dx in range(2 * PADDING + 1):
                    if torch.equal(padded[:, dy : dy + 8, dx : dx + 6], crop):
                        found = flipped
        assert found is not None
        kinds.add(found)
    assert kinds == {False, True}


def test_only_images_can_be_augmented() -> None:
    with pytest.raises(ConfigError, match="use --no-augment"):
        Augmenter(torch.zeros(4, 6))
