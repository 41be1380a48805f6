"""The built-in models by name."""

from __future__ import annotations

from dataclasses import dataclass

from common import plugin
from common.errors import ConfigError
from common.installed.entry_points import EntryPoints


@dataclass(frozen=True)
class BuiltIn:
    """What is known of a model without building it."""

    text: str
    usual_shape: tuple[int, ...] = (3, 32, 32)
    """Shape of the examples it was made for; others of its kind do as well."""
    features: int = 0
    """Values that its layers together make of one pixel at width 1, at the most; what a batch takes."""


BUILT_IN = {
    "cnn": BuiltIn("two convolutions and two linear layers, for small images such as digits", (1, 8, 8), 120),
    "mlp": BuiltIn("four hidden layers of 128, for quick experiments on any small images", features=20),
    "vgg11": BuiltIn("VGG-11 without normalisation, for 32x32 images", features=420),
    "resnet8": BuiltIn("ResNet-8 with GroupNorm, for 32x32 images", features=190),
    "resnet8-bn": BuiltIn("ResNet-8 with BatchNorm, for 32x32 images", features=190),
}


INSTALLED = EntryPoints("fedpvr.models", "model")
"""Factories f(num_classes) -> nn.Module of other packages."""


def require_known(name: str) -> None:
    """Raises for a name that is neither built in nor module:factory nor of an installed package."""
    if name not in BUILT_IN and not plugin.is_plugin(name) and name not in INSTALLED:
        known = ", ".join([*BUILT_IN, *INSTALLED])
        raise ConfigError(f"unknown model {name!r}; choose {known} or module:factory")


def usual_shape(name: str) -> tuple[int, ...]:
    """Shape of the examples that a model is usually given; a plug-in's factory does not ask for it."""
    return BUILT_IN[name].usual_shape if name in BUILT_IN else BuiltIn.usual_shape
