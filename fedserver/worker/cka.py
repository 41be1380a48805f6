"""How alike two representations are: centred kernel alignment, linear kernel (Kornblith et al., ICML 2019).

1 for representations that differ by an orthogonal transform and a scale, near 0 for unrelated ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from common.devices.place import doubled


def gram(features: Tensor) -> Tensor:
    """The centred Gram matrix of n representations, in float64: (n, ...) to (n, n)."""
    flat = doubled(features.reshape(len(features), -1))
    flat = flat - flat.mean(0)
    return flat @ flat.T


def alignment(first: Tensor, second: Tensor) -> float:
    """CKA from two Gram matrices; 0 if one of the representations is constant."""
    scale = torch.linalg.norm(first) * torch.linalg.norm(second)
    return float((first * second).sum() / scale) if scale > 0 else 0.0


def mean_alignment(grams: list[Tensor]) -> float:
    """Mean CKA over all pairs."""
    pairs = [alignment(a, b) for k, a in enumerate(grams) for b in grams[k + 1 :]]
    return sum(pairs) / len(pairs)
