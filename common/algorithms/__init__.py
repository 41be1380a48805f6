"""The algorithms by name. Nothing outside this package asks which one runs.

S_svr, the set of names with variance reduction, says most of it: {} is FedAvg, the classifier's parameters
are FedPVR, all parameters are SCAFFOLD. To add an algorithm, write a file like its neighbours and a line
below.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from common.algorithms.base import Algorithm
from common.algorithms.feddyn import FedDyn
from common.algorithms.fedprox import FedProx
from common.algorithms.svr import FedPVR, Scaffold
from common.errors import ConfigError

ALGORITHMS: dict[str, Algorithm] = {
    "fedpvr": FedPVR(),
    "fedavg": Algorithm(),
    "scaffold": Scaffold(),
    "fedprox": FedProx(),
    "feddyn": FedDyn(),
}

NOTHING = ("", "none")
"""Patterns that select no name on purpose."""


def svr_names(
    algorithm: str, patterns: Sequence[str], parameters: Sequence[str], classifier: Sequence[str]
) -> tuple[str, ...]:
    """S_svr in state-dict order: what the patterns select, or without patterns the algorithm's own choice."""
    if patterns:
        chosen = {name for pattern in patterns for name in matching(pattern, parameters)}
    else:
        chosen = set(ALGORITHMS[algorithm].svr(parameters, classifier))
    return tuple(name for name in parameters if name in chosen)


def ignores_momentum(momentum: float, svr: Sequence[str], parameters: Sequence[str]) -> bool:
    """Whether a momentum is asked for that acts on nothing: it is for parameters outside S_svr alone."""
    return momentum > 0 and set(svr) >= set(parameters)


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The names a pattern selects: a glob over the whole name, or a module's name for all that is in it."""
    if pattern in NOTHING:
        return []
    found = [name for name in names if fnmatchcase(name, pattern) or name.startswith(pattern + ".")]
    if not found:
        raise ConfigError(
            f"--svr {pattern!r} selects no parameter of {', '.join(names)} (to select none: --svr none)"
        )
    return found
