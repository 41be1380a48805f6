"""The algorithms by name. Nothing outside this package asks which one runs.

S_svr, the set of names with variance reduction, says most of it: {} is FedAvg, the classifier's parameters
are FedPVR, all parameters are SCAFFOLD. To add an algorithm, write a file like its neighbours and a line
below, or a package of your own with an entry point `fedpvr.algorithms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from common.algorithms.auto import is_auto
from common.algorithms.base import Algorithm
from common.algorithms.feddyn import FedDyn
from common.algorithms.fedprox import FedProx
from common.algorithms.svr import FedPVR, Scaffold
from common.errors import ConfigError
from common.installed.table import Table
from common.tensors.classes import TensorClass, TensorClasses
from common.tensors.layout import Purpose, TensorSpec

_BUILT_IN: dict[str, Algorithm] = {
    "fedpvr": FedPVR(),
    "fedavg": Algorithm(),
    "scaffold": Scaffold(),
    "fedprox": FedProx(),
    "feddyn": FedDyn(),
}
PROX = {kind.prox_setting: kind.prox_default for kind in _BUILT_IN.values() if kind.prox_setting}
"""Settings that weigh y - x, with their defaults."""


def _checked(name: str, found: object) -> Algorithm:
    made = found() if isinstance(found, type) else found
    if not isinstance(made, Algorithm):
        raise ValueError(f"expected a class derived from common.algorithms.base.Algorithm, got {found!r}")
    if made.prox_setting not in (None, *PROX):
        raise ValueError(f"prox_setting is None or one of {', '.join(PROX)}, got {made.prox_setting!r}")
    return made


ALGORITHMS = Table("fedpvr.algorithms", "algorithm", _BUILT_IN, _checked)

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


def tensor_classes(
    algorithm: str,
    specs: Sequence[TensorSpec],
    classifier: Sequence[str],
    *,
    svr: Sequence[str] = (),
    personal: Sequence[str] = (),
    freeze: Sequence[str] = (),
) -> TensorClasses:
    """The class of every tensor, from patterns. An algorithm's own S_svr leaves out what has a class.

    Raises for a pattern that selects nothing, a tensor that two select, and a model with nothing to share.
    """
    parameters = [spec.name for spec in specs if spec.purpose is Purpose.MODEL]
    apart = {
        kind: _with_buffers({n for p in patterns for n in matching(p, [s.name for s in specs], flag)}, specs)
        for kind, patterns, flag in (("personal", personal, "--personal"), ("frozen", freeze, "--freeze"))
    }
    reduced = svr_names(algorithm, svr, parameters, classifier)
    if not svr:
        reduced = tuple(name for name in reduced if not any(name in names for names in apart.values()))
    classes = TensorClasses(specs, reduced=reduced, **apart)
    if not set(classes.names(TensorClass.SHARED, TensorClass.REDUCED)).intersection(parameters):
        raise ConfigError("--personal and --freeze leave no parameter to train together; select fewer")
    return classes


def _with_buffers(chosen: set[str], specs: Sequence[TensorSpec]) -> list[str]:
    """Names, and buffers whose module has all its parameters among them: statistics follow their norm."""
    own: dict[str, list[str]] = {}
    for spec in specs:
        if spec.purpose is Purpose.MODEL:
            own.setdefault(spec.name.rpartition(".")[0], []).append(spec.name)
    following = {module for module, names in own.items() if chosen.issuperset(names)}
    return [
        spec.name
        for spec in specs
        if spec.name in chosen
        or (spec.purpose is Purpose.BUFFER and spec.name.rpartition(".")[0] in following)
    ]


def matching(pattern: str, names: Sequence[str], flag: str = "--svr") -> list[str]:
    """The names a pattern selects: a glob over the whole name, or a module's name for all that is in it."""
    if pattern in NOTHING or is_auto(pattern):
        return []
    found = [name for name in names if selects(pattern, name)]
    if not found:
        what = "parameter" if flag == "--svr" else "tensor"
        raise ConfigError(
            f"{flag} {pattern!r} selects no {what} of {', '.join(names)} (to select none: {flag} none)"
        )
    return found


def selects(pattern: str, name: str) -> bool:
    """Whether a pattern selects a name."""
    return fnmatchcase(name, pattern) or name.startswith(pattern + ".")
