"""Every tensor of a model has one class: who has it, who trains it, and when it is sent.

class             who has it        trained        sent
----------------  ----------------  -------------  ------------------------------------------------------
shared            everybody, in x   yes, averaged  down and up in every round
variance-reduced  the same          yes, averaged  the same, and c and c_i with it: S_svr
personal          each client one   yes            never; a client keeps it beside its c_i
frozen            everybody         no             down to a client that has not got it; then never again

A method is a choice of names: FedPer has a personal classifier, FedBN personal norms, FedPVR a
variance-reduced classifier, and transfer learning a frozen trunk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from common.errors import ConfigError
from common.tensors.layout import NOTHING, Flat, Layout, Purpose, TensorSpec, fingerprint

PERSONAL = "personal."
"""Stands before the name of a personal tensor where a client keeps it."""


class TensorClass(StrEnum):
    """What is done with a tensor."""

    SHARED = "shared"
    REDUCED = "variance-reduced"
    PERSONAL = "personal"
    FROZEN = "frozen"


_FLAGS = {
    TensorClass.REDUCED: "--svr",
    TensorClass.PERSONAL: "--personal",
    TensorClass.FROZEN: "--freeze",
}


class TensorClasses:
    """The tensors of a model by class. Only what is in `shared` is part of x."""

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        *,
        reduced: Iterable[str] = (),
        personal: Iterable[str] = (),
        frozen: Iterable[str] = (),
    ) -> None:
        """Raises for a name that the model does not have, or that has two classes."""
        self.whole = Layout(specs)
        self.of = dict.fromkeys((spec.name for spec in specs), TensorClass.SHARED)
        chosen = (
            (TensorClass.REDUCED, reduced),
            (TensorClass.PERSONAL, personal),
            (TensorClass.FROZEN, frozen),
        )
        for kind, names in chosen:
            for name in names:
                before = self.of.get(name)
                if before is None:
                    raise ConfigError(f"the model has no tensor {name!r}, which is to be {kind}")
                if before is not TensorClass.SHARED:
                    raise ConfigError(
                        f"{name} is selected by {_FLAGS[before]} and by {_FLAGS[kind]}; "
                        "a tensor has one class, so select it by one of them"
                    )
                self.of[name] = kind

    def names(self, *kinds: TensorClass) -> tuple[str, ...]:
        """Names of these classes, in the order of the model."""
        return tuple(name for name, kind in self.of.items() if kind in kinds)

    def _specs(self, *kinds: TensorClass) -> list[TensorSpec]:
        return [spec for spec in self.whole.specs if self.of[spec.name] in kinds]

    @cached_property
    def shared(self) -> Layout:
        """x and the buffers: everything that is sent in every round, but for c."""
        return Layout(self._specs(TensorClass.SHARED, TensorClass.REDUCED))

    @cached_property
    def broadcast(self) -> Layout:
        """x, the buffers and c."""
        reduced = (spec for spec in self._specs(TensorClass.REDUCED) if spec.purpose is Purpose.MODEL)
        return Layout([*self.shared.specs, *(_as(spec, Purpose.CONTROL) for spec in reduced)])

    @cached_property
    def personal(self) -> Layout:
        """What each client keeps for itself, under the names of its state."""
        own = self._specs(TensorClass.PERSONAL)
        return Layout(TensorSpec(PERSONAL + s.name, s.dtype, s.shape, Purpose.CLIENT_CONTROL) for s in own)

    @cached_property
    def frozen(self) -> Layout:
        """What is sent to each client once."""
        return Layout(_as(spec, Purpose.FROZEN) for spec in self._specs(TensorClass.FROZEN))

    def picked(self, whole: Flat, part: Layout) -> Flat:
        """The values of some tensors out of those of the whole model; the same buffer where it is all."""
        if part.specs == self.whole.specs:
            return whole
        places = {spec.name: k for k, spec in enumerate(self.whole.specs)}
        flat = part.allocate()
        for k, spec in enumerate(part.specs):
            part.raw(flat, k)[:] = self.whole.raw(whole, places[spec.name.removeprefix(PERSONAL)])
        return flat


@dataclass(frozen=True, eq=False)
class FrozenTensors:
    """The tensors that stay as they are, with their values."""

    layout: Layout
    flat: Flat

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names, shapes and values, by which a client knows what it holds; empty for none."""
        if not self.layout.specs:
            return ""
        found = hashlib.sha256(fingerprint(self.layout.specs).encode())
        for k in range(len(self.layout.specs)):
            found.update(self.layout.raw(self.flat, k).data)
        return found.hexdigest()


NONE_FROZEN = FrozenTensors(NOTHING, NOTHING.allocate())


def _as(spec: TensorSpec, purpose: Purpose) -> TensorSpec:
    return TensorSpec(spec.name, spec.dtype, spec.shape, purpose)
