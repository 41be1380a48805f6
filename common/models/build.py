"""Models by name, and the tensors they exchange.

A model is any `nn.Module` that maps a batch of examples to class scores. Its classifier, which is what FedPVR
reduces the variance of, is named by the module itself in `classifier_modules`, or else is the last layer with
parameters.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import torch
from torch import nn

from common import plugin, seeds
from common.errors import ConfigError, place_in_plugin
from common.models.cnn import CNN
from common.models.mlp import MLP
from common.models.names import BUILT_IN, INSTALLED, require_known
from common.models.resnet import ResNet8
from common.models.spec import ModelSpec
from common.models.vgg import VGG11
from common.tensors.layout import DTYPES, Purpose, TensorSpec

_BUILDERS: dict[str, Callable[[ModelSpec], nn.Module]] = {
    "cnn": lambda spec: CNN(spec.num_classes, spec.image_shape[0], spec.width),
    "mlp": lambda spec: MLP(spec.num_classes, math.prod(spec.image_shape), spec.width),
    "vgg11": lambda spec: VGG11(spec.num_classes, spec.image_shape[0], spec.width, spec.image_shape[-1]),
    "resnet8": lambda spec: ResNet8(spec.num_classes, spec.image_shape[0], spec.width, norm="group"),
    "resnet8-bn": lambda spec: ResNet8(spec.num_classes, spec.image_shape[0], spec.width, norm="batch"),
}
assert _BUILDERS.keys() == BUILT_IN.keys()
DRAWING = threading.RLock()
"""Held by whoever draws from torch's generator, to build a model or to train one with dropout: threads share
it, and two that seed it and draw from it at once disturb each other."""


def build_model(spec: ModelSpec, seed: int) -> nn.Module:
    """A freshly initialised model; the seed fixes every parameter."""
    require_known(spec.name)
    build = _BUILDERS.get(spec.name, _from_factory)
    # The caller's random state is left alone: dropout during training has a stream of its own.
    with DRAWING, torch.random.fork_rng(devices=[]):
        # torch.manual_seed takes milliseconds to note who has called it, for GPUs that a factory may draw on.
        generators = torch.default_generator if spec.name in _BUILDERS else torch
        generators.manual_seed(seeds.number(seed, seeds.INIT))
        model = build(spec)
    return model.to(getattr(torch, spec.dtype))


def count_parameters(spec: ModelSpec) -> int:
    """Of a built-in model, without the memory for them: on torch's meta device tensors are shapes only."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in build_model(spec, 0).parameters())
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"model {spec.name} of width {spec.width} cannot be built: {reason}") from error


def outline(spec: ModelSpec) -> tuple[list[TensorSpec], list[str]]:
    """The tensors of a built-in model and the names of its classifier, without the memory for them."""
    with torch.device("meta"):
        model = build_model(spec, 0)
    return tensor_specs(model), classifier_names(model)


def _from_factory(spec: ModelSpec) -> nn.Module:
    factory = plugin.load(spec.name, INSTALLED)
    try:
        model = factory(spec.num_classes)
    except Exception as error:
        failed = f"factory({spec.num_classes}) failed{place_in_plugin(error)}"
        raise ConfigError(f"model {spec.name}: {failed}: {error!r}") from error
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
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(f"{name} has no shape before the first batch; lazy layers are not supported")
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
    """Names of the classifier's parameters, the default S_svr of FedPVR; empty if the model does not tell."""
    owners = tuple(f"{module}." for module in classifier_modules(model))
    return [name for name, _ in model.named_parameters() if name.startswith(owners)]


def classifier_modules(model: nn.Module) -> Sequence[str]:
    """Names of the modules that the classifier consists of; empty if the model does not tell."""
    told: Sequence[str] | None = getattr(model, "classifier_modules", None)
    if told is not None:
        return told
    last_owner = [name.rpartition(".")[0] for name, _ in model.named_parameters()][-1]
    # Parameters of the root itself do not tell which of them classify.
    return [last_owner] if last_owner else []


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
