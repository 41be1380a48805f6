"""The settings that say what is done with each tensor, and where first values come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import algorithms
from common.algorithms.auto import auto_budget
from common.errors import ConfigError
from common.tensors.classes import TensorClasses
from common.tensors.layout import TensorSpec
from fedserver.settings import Section

MODEL = Section.MODEL


@dataclass(frozen=True, kw_only=True)
class TensorSettings:
    """Every tensor has one class; see common/tensors/classes.py."""

    svr: tuple[str, ...] = MODEL.setting(
        (),
        "Parameters with variance reduction: a glob or a module's name; repeatable; none for none. Or alone, "
        "auto:SHARE: modules whose gradients are most apart, up to this share of x's bytes (auto: 0.1).",
        metavar="PATTERN",
        if_unset="the model's classifier",
    )
    personal: tuple[str, ...] = MODEL.setting(
        (),
        "Tensors that each client trains and keeps for itself and nobody else sees: a glob or a module's "
        "name; repeatable.",
        metavar="PATTERN",
        if_unset="none",
    )
    freeze: tuple[str, ...] = MODEL.setting(
        (),
        "Tensors that stay as they are at the start and are sent to each client once: a glob or a module's "
        "name; repeatable.",
        metavar="PATTERN",
        if_unset="none",
    )
    init: str | None = MODEL.setting(
        None,
        "Start from the tensors of this safetensors file; fedlab model --export writes one.",
        metavar="FILE",
        if_unset="from the seed",
    )
    init_missing: str = MODEL.setting(
        "error",
        "What to do about tensors that --init has not, or has in another shape: keep the seed's.",
        choices=("error", "keep"),
    )

    @property
    def svr_budget(self) -> float:
        """The share of the bytes of x that an S_svr may have that the server chooses; 0 where it does not."""
        return auto_budget(self.svr)

    def tensor_classes(
        self, algorithm: str, specs: Sequence[TensorSpec], classifier: Sequence[str]
    ) -> TensorClasses:
        """The class of every tensor of a model."""
        return algorithms.tensor_classes(
            algorithm, specs, classifier, svr=self.svr, personal=self.personal, freeze=self.freeze
        )

    def check_tensors(self, server_best: str | None) -> None:
        """Raises for settings that exclude each other; `server_best` is what the server would evaluate."""
        _ = self.svr_budget  # Raises for an auto that is none.
        if self.init_missing != "error" and self.init is None:
            raise ConfigError(f"--init-missing {self.init_missing} goes with --init FILE")
        if self.init is not None and not Path(self.init).is_file():
            raise ConfigError(f"--init {self.init}: no such file; write one with: fedlab model --export")
        if server_best is not None and self.personal:
            raise ConfigError(
                "--best with --personal needs a task: only sites can evaluate x with personal tensors"
            )
