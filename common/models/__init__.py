"""Models by name, and the tensors they exchange.

A model is any `nn.Module` that maps a batch of examples to class scores. Its classifier, which is what FedPVR
reduces the variance of, is named by the module itself in `classifier_modules`, or else is the last layer with
parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from common import plugin, seeds
from common.errors import ConfigError
from common.model_names import BUILT_IN, require_known
from common.models.cnn import CNN
from common.models.resnet import ResNet8
from common.models.vgg import VGG11
from common.tensors import DTYPES, Purpose, TensorSpec

_BUILDERS: dict[str, Callable[[int, int], nn.Module]] = {
    "cnn": CNN,
    "vgg11": VGG11,
    "resnet8": lambda num_classes, channels: ResNet8(num_classes, channels, norm="group"),
    "resnet8-bn": lambda num_classes, channels: ResNet8(num_classes, channels, norm="batch"),
}
assert _BUILDERS.keys() == BUILT_IN.keys()


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What it takes to build a model: the same on the server and on every client."""

    name: str
    num_classes: int
    image_shape: tuple[int, ...]
    dtype: str = "float32"


def build(spec: ModelSpec, seed: int) -> nn.Module:
    """A freshly initialised model; the seed fixes every parameter."""
    require_known(spec.name)
    # The caller's random state is left alone: dropout during training has a stream of its own.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.number(seed, seeds.INIT))
        if plugin.is_plugin(spec.name):
            model = _from_factory(spec)
        else:
            model = _BUILDERS[spec.name](spec.num_classes, spec.image_shape[0])
    return model.to(getattr(torch, spec.dtype))


def _from_factory(spec: ModelSpec) -> nn.Module:
    factory = plugin.load(spec.name)
    try:
        model = factory(spec.num_classes)
    except Exception as error:
        raise ConfigError(f"model {spec.name}: factory({spec.num_classes}) failed: {error!r}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model {spec.name}: expected factory(num_classes) -> nn.Module, got {type(model).__name__}"
        )
    return model


def tensor_specs(model: nn.Module) -> list[TensorSpec]:
    """All tensors of the state dict in order, parameters as MODEL and the rest as BUFFER."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    first_name: dict[int, str] = {}
    for name, parameter in parameters.items():
        if first_name.setdefault(id(parameter), name) != name:
            raise ConfigError(
                f"{first_name[id(parameter)]} and {name} are one tensor; shared parameters are not supported"
            )
    specs = []
    for name, tensor in model.state_dict().items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        purpose = Purpose.MODEL if name in parameters else Purpose.BUFFER
        if dtype not in DTYPES or not (
            DTYPES[dtype].trains if purpose is Purpose.MODEL else DTYPES[dtype].averages
        ):
            raise ConfigError(
                f"model tensor {name} is {dtype}; parameters must be floating point, buffers real"
            )
        specs.append(TensorSpec(name, dtype, tuple(tensor.shape), purpose))
    if not parameters:
        raise ConfigError("the model has no parameters to train")
    return specs


def classifier_names(model: nn.Module) -> list[str]:
    """Names of the classifier's parameters: the default S_svr of FedPVR."""
    modules = getattr(model, "classifier_modules", None)
    if modules is None:
        owners = [name.rpartition(".")[0] for name, _ in model.named_parameters()]
        modules = owners[-1:]
    return [
        name
        for name, _ in model.named_parameters()
        if any(name == module or name.startswith(module + ".") or module == "" for module in modules)
    ]


def check_fit(model: nn.Module, images: torch.Tensor, spec: ModelSpec) -> None:
    """Raises unless the model maps these images to one score per class."""
    shape = "x".join(map(str, images.shape[1:]))
    try:
        with torch.inference_mode():
            scores = model.eval()(images)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"model {spec.name} does not take examples of shape {shape}: {reason}") from error
    expected = (len(images), spec.num_classes)
    if not isinstance(scores, torch.Tensor) or tuple(scores.shape) != expected:
        got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise ConfigError(f"model {spec.name} must return scores of shape {expected}, got {got}")
