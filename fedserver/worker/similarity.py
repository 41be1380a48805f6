"""CKA between the models of clients, layer by layer, on test images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from common.data.batches import Batches
from fedserver.worker.cka import gram, mean_alignment

MAX_CLIENTS = 10
"""Models compared at most; what is kept of each is a matrix per layer, images by images."""


def layer_grams(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """The centred Gram matrix of every layer that has parameters of its own."""
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


def similarity(models: Iterable[nn.Module], batches: Batches, num_images: int) -> dict[str, float]:
    """Mean CKA over pairs of models, by layer. Models come one at a time and need not exist together."""
    images, _ = batches.batch(torch.arange(min(num_images, len(batches))))
    by_layer: defaultdict[str, list[Tensor]] = defaultdict(list)
    for model in models:
        for name, matrix in layer_grams(model, images).items():
            by_layer[name].append(matrix)
    return {name: mean_alignment(grams) for name, grams in by_layer.items() if len(grams) > 1}
