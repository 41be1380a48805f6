"""What model.safetensors says of itself: which run it is of, who is in it, and who was left out and why."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import StateError
from common.records import form
from common.records.base import Count, FormError, Positive, Record
from common.records.run import RunRecord
from common.tensors import safetensors_files

PROVENANCE = "provenance"
"""Its key in a file's metadata."""
MOST_CLIENTS = 1_000
MOST_CLASSES = 100
"""Class names that are told; there is no limit to how many a run has."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a client has to do with a model."""

    name: str
    """As it joined."""
    examples: Count
    """That it trains on, as it told."""
    rounds: Count
    """How many rounds have an update of it that counted."""
    took_part: str
    """Which these are, such as 1-7,9; of more than 20 ranges those in the middle are `...`."""
    left_out: dict[str, str] = field(default_factory=dict)
    """In which rounds its update is not in x though it was drawn, by reason: deadline (late), gone (no sign
    of life), stalled, left, declined; too large, on probation; clipped: then a part of it is in x."""
    evicted_in: Count | None = None
    """The round that was open when the operator took it out of the run; left out for a member."""


@dataclass(frozen=True, kw_only=True)
class Provenance(Record):
    """Of one model. Nothing in it depends on when a round was: the same run says the same."""

    run_id: str
    """Of the run."""
    round: Count
    """The closed round that this is the x of."""
    rounds: Positive
    """R, of the whole run."""
    config: str
    """SHA-256 over the settings in config.json, as JSON with sorted keys."""
    fingerprint: str
    """SHA-256 over names, types and shapes of the model's tensors."""
    algorithm: str
    """As in config.json, as are the next two."""
    model: str
    """Built-in name or module:factory."""
    dataset: str
    """none where all data are at the clients."""
    num_classes: Positive
    """Classes that the model tells apart."""
    class_names: tuple[str, ...]
    """By class number; the first 100."""
    num_clients: Positive
    """N."""
    rounds_without: Count
    """Closed rounds that somebody who was drawn for them is not in."""
    clients: tuple[Part, ...]
    """By index; the first 1,000."""
    more_clients: Count = 0
    """How many there are besides them."""

    @classmethod
    def of(
        cls, config: RunRecord, r: int, rounds_without: int, clients: tuple[Part, ...], more_clients: int
    ) -> Provenance:
        """Of the x of round r."""
        settings = json.dumps(form.plain(config.settings), sort_keys=True)
        rounds = config.settings["rounds"]
        assert isinstance(rounds, int), "a run has so many rounds"
        return cls(
            run_id=config.run_id,
            round=r,
            rounds=rounds,
            config=hashlib.sha256(settings.encode()).hexdigest(),
            fingerprint=config.fingerprint,
            algorithm=config.algorithm,
            model=config.model,
            dataset=config.dataset,
            num_classes=config.num_classes,
            class_names=config.class_names[:MOST_CLASSES],
            num_clients=config.num_clients,
            rounds_without=rounds_without,
            clients=clients,
            more_clients=more_clients,
        )


def read_provenance(path: Path) -> Provenance:
    """What a model says of itself; raises for a file that is damaged, or says nothing."""
    safetensors_files.require_whole(path)
    note = safetensors_files.read_note(path)
    if PROVENANCE not in note:
        raise StateError(
            f"{path} does not say where it is from; expected a model.safetensors that fedserver has written"
        )
    try:
        return form.read(Provenance, json.loads(note[PROVENANCE]))
    except FormError as error:
        raise StateError(f"{path}: in its metadata, {error}") from error
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: in its metadata, expected JSON, got something else ({error})") from error
