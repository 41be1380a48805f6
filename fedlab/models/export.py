"""Writes a model's first weights as a safetensors file, for fedserver run --init."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from common import plugin, seeds
from common.data.torchvision_import import torchvision_datasets
from common.errors import ConfigError
from common.models.build import build_model, check_fit, classifier_names, tensor_specs
from common.models.names import BUILT_IN, INSTALLED, require_known
from common.models.spec import ModelSpec
from common.records import form
from common.tensors import safetensors_files
from common.tensors.description import DESCRIPTION, ModelDescription
from common.tensors.layout import Layout, Purpose
from common.tensors.torch_views import flatten


def export_model(spec: ModelSpec, seed: int, path: Path) -> str:
    """Writes the file; returns where its values come from.

    The file describes its model, so that a server of a task with this very model needs no torch. One of
    torchvision does not: it runs as a plug-in, whose name and shape only its user knows.
    """
    if spec.name in BUILT_IN or plugin.is_plugin(spec.name) or spec.name in INSTALLED:
        model, source = build_model(spec, seed), f"seed {seed}"
        check_fit(model, torch.zeros(2, *spec.image_shape, dtype=getattr(torch, spec.dtype)), spec)
        described = ModelDescription(
            model=spec, specs=tuple(tensor_specs(model)), classifier=tuple(classifier_names(model))
        )
        note = {DESCRIPTION: form.text(described)}
    else:
        (model, source), note = _of_torchvision(spec.name, spec.num_classes, seed), {}
    layout = Layout(tensor_specs(model))
    flat = flatten(model, layout)
    safetensors_files.write(path, layout, flat, Purpose.MODEL, Purpose.BUFFER, note=note)
    return source


def _of_torchvision(name: str, num_classes: int, seed: int) -> tuple[nn.Module, str]:
    """A model of torchvision, with its published weights if they are on this machine; nothing is fetched."""
    torchvision_datasets()
    from torchvision import models

    if name not in models.list_models(module=models):
        require_known(name)
    published: Any = models.get_model_weights(name).DEFAULT
    cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(published.url).name
    if not cached.is_file():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.number(seed, seeds.INIT))
            made: nn.Module = models.get_model(name, num_classes=num_classes)
        return made, f"seed {seed}, as {cached} is not there"
    model: nn.Module = models.get_model(name)
    try:
        model.load_state_dict(torch.load(cached, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{cached} is not what torchvision has published: {reason}") from error
    return model, f"{cached}, for {len(published.meta['categories'])} classes"
