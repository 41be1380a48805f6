"""Patterns over the names of a model's tensors, tried before any run starts."""

from __future__ import annotations

from functools import cache

from common.algorithms import matching
from common.models.names import BUILT_IN, usual_shape
from common.models.spec import ModelSpec
from common.server_step.local_rules import PLACES
from common.tensors.layout import Purpose, TensorSpec
from fedserver.config import RunConfig


def require_patterns(config: RunConfig) -> None:
    """Raises if --svr, --freeze, --personal or --momentum-on selects nothing of a built-in model."""
    named = [pattern for pattern in config.momentum_on if pattern not in PLACES]
    if config.model not in BUILT_IN or not (config.svr or config.freeze or config.personal or named):
        return
    specs, classifier = _tensors(config.model)
    config.tensor_classes(config.algorithm, specs, classifier)
    for pattern in named:
        matching(pattern, [spec.name for spec in specs if spec.purpose is Purpose.MODEL], "--momentum-on")


@cache
def _tensors(model: str) -> tuple[list[TensorSpec], list[str]]:
    """Of a model, and the names of its classifier: they depend on neither data nor width."""
    from common.models.build import outline

    return outline(ModelSpec(name=model, num_classes=10, image_shape=usual_shape(model)))
