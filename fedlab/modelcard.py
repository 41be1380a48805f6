"""What a model costs to train in a federation: its tensors, S_svr, and the traffic of each algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from common.algorithms import svr_names
from common.models.build import build_model, classifier_names, tensor_specs
from common.models.names import usual_shape
from common.models.spec import ModelSpec
from common.tensors.layout import Purpose


@dataclass(frozen=True)
class TensorRow:
    """One tensor of a model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    purpose: str
    svr: bool
    """Whether its variance is reduced."""


@dataclass(frozen=True)
class ModelCard:
    """The tensors of a model, and what they mean for traffic."""

    name: str
    num_classes: int
    d: int
    """Number of parameters."""
    v: int
    """Number of those in S_svr."""
    multiplier: float
    """2(1 + v/d), the floats per client and round in units of d."""
    tensors: tuple[TensorRow, ...]


def model_card(name: str, num_classes: int, width: float, patterns: tuple[str, ...]) -> ModelCard:
    """The card of a model for examples of the shape that it is usually given."""
    spec = ModelSpec(name=name, num_classes=num_classes, image_shape=usual_shape(name), width=width)
    model = build_model(spec, seed=0)
    specs = tensor_specs(model)
    parameters = [s for s in specs if s.purpose is Purpose.MODEL]
    svr = svr_names("fedpvr", patterns, [s.name for s in parameters], classifier_names(model))
    d = sum(s.num_elements for s in parameters)
    v = sum(s.num_elements for s in parameters if s.name in svr)
    return ModelCard(
        name=name,
        num_classes=num_classes,
        d=d,
        v=v,
        multiplier=2 * (1 + v / d),
        tensors=tuple(
            TensorRow(
                s.name,
                s.dtype,
                s.shape,
                s.purpose.name.lower(),
                s.purpose is Purpose.MODEL and s.name in svr,
            )
            for s in specs
        ),
    )
