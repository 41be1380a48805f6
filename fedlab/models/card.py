"""What a model costs to train in a federation: its tensors, S_svr, and the traffic of each algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from common.algorithms import tensor_classes
from common.models.build import build_model, classifier_names, tensor_specs
from common.models.names import usual_shape
from common.models.spec import ModelSpec
from common.tensors.classes import TensorClass
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
    kind: str
    """Its class: shared, variance-reduced, personal or frozen."""


@dataclass(frozen=True)
class ModelCard:
    """The tensors of a model, and what they mean for traffic."""

    name: str
    num_classes: int
    parameters: int
    """Number of all parameters."""
    d: int
    """Number of those that are shared: what x has."""
    v: int
    """Number of those in S_svr."""
    multiplier: float
    """2(1 + v/d), the floats per client and round in units of d."""
    tensors: tuple[TensorRow, ...]


def model_card(
    name: str,
    num_classes: int,
    width: float,
    shape: tuple[int, ...] | None = None,
    svr: tuple[str, ...] = (),
    personal: tuple[str, ...] = (),
    freeze: tuple[str, ...] = (),
) -> ModelCard:
    """The card of a model for examples of a shape, or of the one that it is usually given."""
    shape = shape or usual_shape(name)
    spec = ModelSpec(name=name, num_classes=num_classes, image_shape=shape, width=width)
    model = build_model(spec, seed=0)
    specs = tensor_specs(model)
    classes = tensor_classes(
        "fedpvr", specs, classifier_names(model), svr=svr, personal=personal, freeze=freeze
    )
    d, v = (
        sum(s.num_elements for s in classes.broadcast.specs if s.purpose is purpose)
        for purpose in (Purpose.MODEL, Purpose.CONTROL)
    )
    return ModelCard(
        name=name,
        num_classes=num_classes,
        parameters=sum(s.num_elements for s in specs if s.purpose is Purpose.MODEL),
        d=d,
        v=v,
        multiplier=2 * (1 + v / d),
        tensors=tuple(
            TensorRow(
                s.name,
                s.dtype,
                s.shape,
                s.purpose.name.lower(),
                classes.of[s.name] is TensorClass.REDUCED,
                classes.of[s.name],
            )
            for s in specs
        ),
    )
