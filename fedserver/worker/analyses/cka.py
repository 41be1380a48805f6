"""How alike two representations are: centred kernel alignment, linear kernel (Kornblith et al., ICML 2019).

1 for representations that differ by an orthogonal transform and a scale, near 0 for unrelated ones.

HSIC(K, L) is an inner product of two centred Gram matrices, and CKA the cosine of the angle between them.
Centred in the usual way they have diagonals in common whatever the representations are, and the wider these
are the larger that share is: the estimate is biased upwards, to nearly 1 for many more features than images.
The unbiased HSIC (Song et al., JMLR 2012) leaves the diagonal out and centres the rest accordingly. It can be
averaged over minibatches of images (Nguyen et al., ICLR 2021): only matrices of a minibatch are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

BLOCK = 8192
"""Features that are in memory in float64 at once."""


def gram(features: Tensor) -> Tensor:
    """The Gram matrix of n representations less their mean, in float64: (n, ...) to (n, n)."""
    flat = features.reshape(len(features), -1)
    found = torch.zeros(len(flat), len(flat), dtype=torch.float64, device=flat.device)
    for start in range(0, flat.shape[1], BLOCK):
        block = flat[:, start : start + BLOCK].double()
        block -= block.mean(0)
        found.addmm_(block, block.T)
    return found


def centred(matrix: Tensor) -> Tensor:
    """Of the biased HSIC: rows and columns of a Gram matrix have mean 0 already, the diagonal counts."""
    return matrix


def u_centred(matrix: Tensor) -> Tensor:
    """Of the unbiased HSIC, which is the sum of the products of the elements of two such matrices.

    No diagonal, and the means over rows, columns and all that make the expectation of each element 0.
    """
    n = len(matrix)
    off = matrix - torch.diag(matrix.diagonal())
    rows = off.sum(0) / (n - 2)
    off = off - rows[:, None] - rows[None, :] + rows.sum() / (n - 1)
    scaled: Tensor = off.fill_diagonal_(0) / float(n * (n - 3)) ** 0.5
    return scaled


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"debiased": u_centred, "biased": centred}
"""How a Gram matrix is centred, by the name of the estimate."""


def products(matrices: Sequence[Tensor]) -> Tensor:
    """HSIC of every pair of representations, from centred Gram matrices on one minibatch: (k, k)."""
    together = torch.stack([matrix.reshape(-1) for matrix in matrices])
    return together @ together.T


def alignment(hsic: Tensor) -> Tensor:
    """CKA of every pair, from HSIC summed over minibatches; 0 if one of the two is constant."""
    lengths = hsic.diagonal().sqrt()
    scale = lengths[:, None] * lengths[None, :]
    return torch.where(scale > 0, hsic / scale, torch.where(scale == 0, torch.zeros_like(scale), scale))
