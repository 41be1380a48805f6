"""What is known of a server, a run and a departure, for the rules of a site to be held against."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Departure:
    """One message that carries something of the site's. Whatever is sent in future needs one of these.

    kind         what leaves
    -----------  ---------------------------------------------------------------------------------------
    join         number of examples and names of classes of a client with data of its own
    update       tensors of y_i and c_i; number of examples and steps, loss, accuracy in validation; counts
                 of an evaluation of x; four measures of how the steps went
    evaluation   counts of an evaluation of x, without an update
    """

    kind: str
    run: str = ""
    """Empty before there is a seat."""
    round: int = 0
    update: str = ""
    """Id of the update; one that is sent again has the same."""
    tensors: tuple[str, ...] = ()
    """Names."""
    bytes: int
    """Of the tensors, or of what else is told, as they travel; envelopes are left out."""
    norm: float | None = None
    """Euclidean norm of y_i - x; None where there are no tensors, or x is not at hand any more."""
    told: tuple[str, ...] = ()
    """What else is in the message, by name."""


@dataclass(frozen=True)
class Usage:
    """What has left in a day."""

    rounds: frozenset[tuple[str, int]] = frozenset()
    """Run and round of updates."""
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """As far as they are known yet; None breaks no rule."""

    server: str | None = None
    """HOST:PORT."""
    encrypted: bool | None = None
    examples: int | None = None
    """That the client has."""
    run: str | None = None
    model: str | None = None
    fingerprint: str | None = None
    modules: tuple[str, ...] = ()
    """Code that the server names."""
    others: int | None = None
    """Participants besides this one."""
    rounds: int | None = None
    """Of the run."""
    algorithm: str | None = None
    codecs: tuple[str, ...] = ()
    """Of an update."""
    approved: bool | None = None
    """Whether runs of this kind are."""
    usage: Usage | None = None
    """Of this day."""
    departure: Departure | None = None
    """What is about to leave."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a site approves: two runs are of one kind if the same leaves for the same purpose."""

    model: str
    fingerprint: str
    classes: tuple[str, ...]
    example: str
    """Shape and type of an example."""
    normalisation: tuple[tuple[float, ...], tuple[float, ...]]
    algorithm: str
    codecs: tuple[str, ...]
    tensors: tuple[str, ...]
    """Name, shape and type of all that leave."""

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that name it."""
        text = json.dumps(vars(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def described(self) -> str:
        """For the person who approves it."""
        return (
            f"{self.algorithm} with model {self.model} (fingerprint {self.fingerprint[:12]}) on examples "
            f"{self.example} of {len(self.classes)} classes; {len(self.tensors)} tensors leave a round, "
            f"as {', '.join(dict.fromkeys(self.codecs))}"
        )
