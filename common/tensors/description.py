"""What a file of weights says of its model, so that whoever has no torch need not build it."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ConfigError
from common.models.spec import ModelSpec
from common.tensors.layout import DTYPES, Purpose, TensorSpec

DESCRIPTION = "fedpvr_model"
"""Its key in the file's metadata."""


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """How a model is built, its tensors in their order, and which of them classify."""

    model: ModelSpec
    specs: tuple[TensorSpec, ...]
    classifier: tuple[str, ...]

    def require_sense(self, path: str) -> None:
        """Raises for a description that no model has."""
        names = [spec.name for spec in self.specs]
        parameters = [spec for spec in self.specs if spec.purpose is Purpose.MODEL]
        buffers = [spec for spec in self.specs if spec.purpose is Purpose.BUFFER]
        if (
            not parameters
            or len(set(names)) < len(names)
            or len(parameters) + len(buffers) < len(names)
            or not all(spec.dtype in DTYPES and DTYPES[spec.dtype].trains for spec in parameters)
            or not all(spec.dtype in DTYPES and DTYPES[spec.dtype].averages for spec in buffers)
            or not {*self.classifier} <= {spec.name for spec in parameters}
        ):
            raise ConfigError(f"{path} describes a model that cannot be; export it again")
