"""What an algorithm is: a choice of S_svr, the names that get variance reduction.

S_svr = {} is FedAvg, the classifier's parameters are FedPVR, all parameters are SCAFFOLD. Nothing outside
this module asks which algorithm runs; everything else works on the set of names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from common.errors import ConfigError

NOTHING = ("", "none")
"""Patterns that select no name on purpose."""


def _classifier(parameters: Sequence[str], classifier: Sequence[str]) -> Sequence[str]:
    return classifier


def _nothing(parameters: Sequence[str], classifier: Sequence[str]) -> Sequence[str]:
    return ()


def _everything(parameters: Sequence[str], classifier: Sequence[str]) -> Sequence[str]:
    return parameters


ALGORITHMS: dict[str, Callable[[Sequence[str], Sequence[str]], Sequence[str]]] = {
    "fedpvr": _classifier,
    "fedavg": _nothing,
    "scaffold": _everything,
}
"""S_svr of each algorithm, from the names of all parameters and of the classifier's."""


def svr_names(
    algorithm: str, patterns: Sequence[str], parameters: Sequence[str], classifier: Sequence[str]
) -> tuple[str, ...]:
    """S_svr in state-dict order: what the patterns select, or without patterns the algorithm's own choice."""
    if patterns:
        chosen = {name for pattern in patterns for name in matching(pattern, parameters)}
    else:
        chosen = set(ALGORITHMS[algorithm](parameters, classifier))
    return tuple(name for name in parameters if name in chosen)


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
