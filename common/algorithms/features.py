"""What a run may want a client to know beyond the first release, behind its algorithm's name.

An older client knows no algorithm `fedpvr+momentum-on`: it leaves the run instead of training wrongly.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.algorithms import ALGORITHMS
from common.errors import WrongRunError, printable

FEATURES = ("momentum-on", "weight-decay", "clip-norm", "warm-variates", "svr-auto")


def joined(algorithm: str, features: Iterable[str]) -> str:
    """As a header has it."""
    return "+".join((algorithm, *features))


def algorithm_in(text: str) -> str:
    """The name of the algorithm; raises WrongRunError for one, or a feature, that is not known here."""
    if text in ALGORITHMS.ready:
        return text
    name, *features = text.split("+")
    if name not in ALGORITHMS.ready:
        raise unknown("algorithm", text, ALGORITHMS.ready)
    for feature in features:
        if feature not in FEATURES:
            raise unknown("feature", feature, FEATURES)
    return name


def unknown(kind: str, name: str, known: Iterable[str]) -> WrongRunError:
    """What is installed and was not allowed is as unknown as the rest: a peer's word imports nothing."""
    shown = printable(name, 80)
    return WrongRunError(
        f"the run uses {kind} {shown!r}, known here are {', '.join(known)}; update this release, or install "
        "the package that has it and start the client with --allow-plugin and that name"
    )
