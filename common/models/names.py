"""The built-in models by name."""

from __future__ import annotations

from common import plugin
from common.errors import ConfigError

BUILT_IN = {
    "cnn": "two convolutions and two linear layers, for small images such as digits",
    "mlp": "four hidden layers of 128, for quick experiments on any small images",
    "vgg11": "VGG-11 without normalisation, for 32x32 images",
    "resnet8": "ResNet-8 with GroupNorm, for 32x32 images",
    "resnet8-bn": "ResNet-8 with BatchNorm, for 32x32 images",
}


def require_known(name: str) -> None:
    """Raises for a name that is neither built in nor module:factory."""
    if name not in BUILT_IN and not plugin.is_plugin(name):
        raise ConfigError(f"unknown model {name!r}; choose {', '.join(BUILT_IN)} or module:factory")
