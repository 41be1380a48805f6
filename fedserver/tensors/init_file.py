"""First values from a safetensors file, without torch.

A file of `fedlab model --export` describes its model too: which tensors are parameters, in which order, and
which of them classify. A server whose run is for that very model needs nobody to build it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import ConfigError, StateError
from common.records import form
from common.records.base import FormError
from common.tensors import safetensors_files
from common.tensors.description import DESCRIPTION, ModelDescription
from common.tensors.layout import (
    DTYPES,
    Array,
    Flat,
    Layout,
    TensorSpec,
    all_finite,
    from_float64,
    to_float64,
)

SHOWN = 20
"""Names in a message."""


@dataclass(frozen=True, eq=False)
class InitFile:
    """The tensors of a file, by name."""

    path: str
    digest: str
    """SHA-256 of the file."""
    tensors: dict[str, tuple[str, Array]]
    """Type and elements."""
    description: ModelDescription | None
    """Of the model that they belong to, where the file has one."""

    def values(self, specs: Sequence[TensorSpec], seeded: Flat | None) -> tuple[Flat, str]:
        """First values of a model, and in words what the file has not.

        What is missing in the file, or is there in another shape, is taken from `seeded`, which is laid out
        as `specs` are; without it, it must not be.
        """
        layout = Layout(specs)
        flat = layout.allocate()
        absent = [spec.name for spec in specs if spec.name not in self.tensors]
        other = [spec.name for spec in specs if spec.name in self.tensors and not self._fits(spec)]
        surplus = sorted(self.tensors.keys() - {spec.name for spec in specs})
        told = "; ".join(
            [
                *([f"missing: {_listed(absent)}"] if absent else []),
                *([f"of another shape or type: {self._compared(layout, other)}"] if other else []),
                *([f"unexpected: {_listed(surplus)}"] if surplus else []),
            ]
        )
        if told and seeded is None:
            raise ConfigError(
                f"--init {self.path} does not fit the model: {told}; --init-missing keep takes what fits"
            )
        if len(absent) + len(other) == len(layout.specs):
            raise ConfigError(f"--init {self.path} has no tensor that fits the model: {told}")
        kept = {*absent, *other}
        for k, spec in enumerate(specs):
            if spec.name not in kept:
                self._fill(layout.array(flat, k), spec)
            elif seeded is not None:
                layout.raw(flat, k)[:] = layout.raw(seeded, k)
        return flat, told

    def _fits(self, spec: TensorSpec) -> bool:
        dtype, values = self.tensors[spec.name]
        alike = dtype == spec.dtype or (DTYPES[dtype].trains and DTYPES[spec.dtype].trains)
        return alike and values.shape == spec.shape

    def _compared(self, layout: Layout, names: list[str]) -> str:
        specs = {spec.name: spec for spec in layout.specs}
        return _listed(
            [
                f"{name} ({self.tensors[name][0]} {self.tensors[name][1].shape} "
                f"for {specs[name].dtype} {specs[name].shape})"
                for name in names
            ]
        )

    def _fill(self, out: Array, spec: TensorSpec) -> None:
        dtype, values = self.tensors[spec.name]
        if dtype != spec.dtype:
            with np.errstate(over="ignore"):
                values = from_float64(to_float64(values, dtype), spec.dtype)
        if not all_finite(values, spec.dtype):
            raise ConfigError(f"--init {self.path}: {spec.name} is not finite")
        out[...] = values


def read_init(path: str) -> InitFile:
    """A file, checked: nothing of it is used before all of it is read."""
    try:
        data = Path(path).read_bytes()
        found, note = safetensors_files.tensors_in(data, path)
    except OSError as error:
        raise ConfigError(f"--init {path} cannot be read: {error.strerror}") from error
    except StateError as error:
        raise ConfigError(f"--init {error}") from error
    return InitFile(path, hashlib.sha256(data).hexdigest(), found, _description(path, note, found))


def _description(
    path: str, note: dict[str, str], tensors: dict[str, tuple[str, Array]]
) -> ModelDescription | None:
    if DESCRIPTION not in note:
        return None
    try:
        found = form.read(ModelDescription, json.loads(note[DESCRIPTION]))
    except (ValueError, RecursionError, FormError) as error:
        raise ConfigError(f"--init {path}: what it says of its model cannot be read: {error}") from error
    found.require_sense(path)
    for spec in found.specs:
        if spec.name not in tensors or tensors[spec.name][1].shape != spec.shape:
            raise ConfigError(f"--init {path}: {spec.name} is not as the file describes it; export it again")
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
