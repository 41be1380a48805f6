"""CKA between the models of clients, layer by layer, on test images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

from common.data.batches import Batches
from fedserver.worker.analyses.cka import ESTIMATORS, alignment, gram, products
from fedserver.worker.messages import Similarity

MINIBATCH = 256
"""Images at most; the noise of the debiased estimate falls with the root of minibatch times images."""


def layer_grams(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """The Gram matrix of every layer that has parameters of its own."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> object:
        def hook(_: nn.Module, __: object, output: Tensor) -> None:
            found[name] = gram(output)

        return hook

    layers = [(n, m) for n, m in model.named_modules() if next(m.parameters(recurse=False), None) is not None]
    hooks = [m.register_forward_hook(keep(n)) for n, m in layers]
    try:
        with torch.inference_mode():
            model.eval()(images)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def minibatches(available: int, num_images: int, estimator: str) -> list[Tensor]:
    """Which images: spread evenly over those there are, also in each minibatch, as these may be in order.

    Minibatches are as few and as equal as can be. The biased estimate has one: small ones would add to it.
    """
    n = min(num_images, available)
    chosen = torch.from_numpy(np.arange(n) * available // n)
    parts = -(-n // MINIBATCH) if estimator == "debiased" else 1
    return [chosen[k::parts] for k in range(parts)]


def similarity(
    models: Callable[[], Iterable[nn.Module]], batches: Batches, num_images: int, estimator: str
) -> Similarity:
    """CKA of all pairs of models, by layer. Models come one at a time and need not exist together."""
    centre, parts = ESTIMATORS[estimator], minibatches(len(batches), num_images, estimator)
    hsic: dict[str, Tensor] = {}
    for part in parts:
        images, _ = batches.batch(part)
        by_layer: defaultdict[str, list[Tensor]] = defaultdict(list)
        for model in models():
            for name, matrix in layer_grams(model, images).items():
                by_layer[name].append(centre(matrix))
        for name, matrices in by_layer.items():
            found = products(matrices)
            hsic[name] = hsic[name] + found if name in hsic else found
    return Similarity(
        images=sum(map(len, parts)),
        minibatches=len(parts),
        layers={name: tuple(map(tuple, alignment(sums).tolist())) for name, sums in hsic.items()},
    )
