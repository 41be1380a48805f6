"""Which metrics a run has: built-in ones by name, and functions of users, `module:function(confusion)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from common import plugin
from common.errors import ConfigError, place_in_plugin
from common.installed.entry_points import EntryPoints
from common.metrics import confusion
from common.metrics.confusion import Confusion

FROM_CONFUSION: dict[str, Callable[[Confusion], float | None]] = {
    "accuracy": confusion.accuracy,
    "balanced_accuracy": confusion.balanced_accuracy,
    "f1": confusion.macro_f1,
}
LOSS, AUROC = "loss", "auroc"
BUILT_IN = (*FROM_CONFUSION, AUROC, LOSS)
INSTALLED = EntryPoints("fedpvr.metrics", "metric")
"""Functions f(confusion) -> number of other packages."""
OF_A_TEST_SET = ("accuracy", "balanced_accuracy", LOSS)
"""What follows from an evaluation by the server, which has accuracies by class and the loss."""


def require_known(name: str, known: Sequence[str], flag: str) -> None:
    """Raises for a metric that a run has not; functions of users are looked at when they are loaded."""
    if name not in known:
        raise ConfigError(f"{flag} {name}: no such metric here; choose {', '.join(known)}")


def is_better(metric: str, value: float | None, than: float | None) -> bool:
    """Whether a value of a metric beats another; none at all beats nothing."""
    if value is None or not math.isfinite(value):
        return False
    return than is None or (value < than if metric == LOSS else value > than)


@dataclass(frozen=True)
class Metrics:
    """Those of one run, ready to be computed."""

    functions: dict[str, Callable[[Confusion], float | None]]
    """Of the confusion matrix."""
    names: tuple[str, ...]

    @classmethod
    def load(cls, names: Sequence[str], num_classes: int) -> Metrics:
        """The metrics of these names, all built-in ones if there are none; raises for one that fails."""
        chosen = tuple(dict.fromkeys(names)) or BUILT_IN
        functions = {name: FROM_CONFUSION[name] for name in chosen if name in FROM_CONFUSION}
        for name in (each for each in chosen if each not in BUILT_IN):
            functions[name] = _tried(name, num_classes)
        return cls(functions, chosen)

    def of(self, matrix: Confusion, loss: float | None, auroc: float | None) -> dict[str, float | None]:
        """Their values by name."""
        others = {LOSS: loss, AUROC: auroc}
        return {
            name: self.functions[name](matrix) if name in self.functions else others[name]
            for name in self.names
        }


def _tried(name: str, num_classes: int) -> Callable[[Confusion], float | None]:
    """A user's metric, after a look at what it makes of a perfect model."""
    function = plugin.load(name, INSTALLED)

    def value(matrix: Confusion) -> float | None:
        try:
            found = float(function(matrix.copy()))
        except ArithmeticError:
            return None
        return found if math.isfinite(found) else None

    try:
        value(np.eye(num_classes, dtype=np.int64))
    except Exception as error:
        raise ConfigError(
            f"metric {name}: expected function(confusion) -> float, got {error!r}{place_in_plugin(error)}"
        ) from error
    return value
