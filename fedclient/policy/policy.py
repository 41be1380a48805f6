"""site.toml: what its owner lets leave a site. Every key is a field here, and nothing else is a key."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from common.algorithms import ALGORITHMS
from common.errors import ConfigError, StateError
from common.installed.allowed import require_allowable
from common.models.names import BUILT_IN
from common.records import form
from common.records.base import Count, Positive
from common.wire.codec_choice import CODECS, FOR_ALL

FILE = "site.toml"
"""Its name in a client's state directory."""
_FINGERPRINT = re.compile("[0-9a-f]{8,64}")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The keys of site.toml, all of them optional. What is left out forbids nothing, but for `modules`."""

    servers: tuple[str, ...] = ()
    """Patterns of HOST:PORT that this site talks to, for example `fl.example.org:*`."""
    require_tls: bool = False
    """Talk to a server only under TLS, with `--certs`."""
    runs: tuple[str, ...] = ()
    """Patterns of the ids of runs that it takes part in."""
    models: tuple[str, ...] = ()
    """Patterns of the names of models that it trains."""
    fingerprints: tuple[str, ...] = ()
    """Fingerprints of models that it trains, or how they begin, 8 digits at least."""
    modules: tuple[str, ...] = ()
    """Code module:factory, or names of installed packages' models, data sets, algorithms and codecs, that a
    server may name, besides those of `--allow-plugin`. None by default."""
    algorithms: tuple[str, ...] = ()
    """Algorithms that it takes part in."""
    codecs: tuple[str, ...] = ()
    """How its updates may be coded: fp32, fp16, bf16, int8, topk."""
    min_others: Count = 0
    """Participants that a run must have besides this one, as the server says."""
    min_examples: Count = 0
    """Examples without which it does not take part."""
    max_rounds: Positive | None = None
    """Rounds of a run."""
    max_rounds_per_day: Positive | None = None
    """Rounds, of all runs together, that updates leave for in a day (UTC)."""
    max_bytes_per_day: Positive | None = None
    """Bytes that leave in a day (UTC), of all runs together."""
    approval: bool = False
    """A run of a kind that was never approved waits for `fedclient approve`."""
    suppress_below: Count = 0
    """Counts below this are not told: no smaller class, no accuracy of fewer, no drift of smaller batches."""
    round_examples: Positive = 1
    """The number of examples is a multiple of this; the examples that are left over are left out."""

    def __post_init__(self) -> None:
        for name in self.modules:
            require_allowable(name)
        _require_among("codecs", self.codecs, [*FOR_ALL, "topk", *CODECS.installed] if self.codecs else ())
        _require_among("algorithms", self.algorithms, ALGORITHMS)
        for text in self.fingerprints:
            if not _FINGERPRINT.fullmatch(text):
                raise ConfigError(f"fingerprints: expected 8 to 64 hexadecimal digits, got {text!r}")

    def allowing(self, *names: str | None) -> Policy:
        """The same, with code that flags allow; what is built in needs no permission."""
        return replace(self, modules=(*self.modules, *(n for n in names if n and n not in BUILT_IN)))

    @property
    def least_examples(self) -> int:
        """With fewer it does not take part: their number itself could not be told."""
        told_in = self.round_examples if self.round_examples > 1 else 0
        return max(self.min_examples, self.suppress_below, told_in)

    def told(self, count: int) -> int:
        """A count of examples of some sort, for example of a class, as the server gets to know it."""
        return count if self.may_tell(count) else 0

    def may_tell(self, count: int) -> bool:
        """Whether a figure may be told that comes from so many examples."""
        return count >= self.suppress_below


KEYS = tuple(field.name for field in fields(Policy))


def _require_among(key: str, given: tuple[str, ...], known: Any) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(f"{key}: expected some of {', '.join(known)}, got {name!r}")


def read_policy(path: Path) -> Policy:
    """What a site.toml says; raises for a key that there is not, and for values that make no sense."""
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read: {reason}") from error
    if unknown := sorted(values.keys() - set(KEYS)):
        raise ConfigError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(KEYS)}")
    for key, value in values.items():
        if value == [] and key != "modules":
            raise ConfigError(f"{path}: {key}: an empty list would allow nothing; leave it out to allow all")
    try:
        return form.read(Policy, values)
    except (ConfigError, StateError) as error:
        raise ConfigError(f"{path}: {error}") from error


def policy_of(given: Path | None, state_dir: Path) -> tuple[Policy, Path] | None:
    """The policy in force and its file: the one that is given, or site.toml of the state directory."""
    path = state_dir / FILE if given is None else given
    return (read_policy(path), path) if given is not None or path.exists() else None
