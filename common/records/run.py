"""config.json: the settings of a run, what came out of them, and who has which seat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common import json_files
from common.records import form
from common.records.base import FORMAT, REST, Count, Positive, Record

CONFIG = "config.json"
Setting = bool | int | float | str | tuple[str, ...] | tuple[float, ...] | None
_DAMAGED = "it is damaged or not of a run: put a copy of it back, or choose another run directory"


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A client of a run."""

    name: str
    """As it joined."""
    index: Count
    """Its place in the order in which updates are folded, from 0."""
    examples: Count
    """Examples that it trains on, a validation share included."""
    classes: tuple[Count, ...] | None
    """Examples of each class in its shard; null for a client with data of its own, which tells nobody."""
    evicted_in: Count | None = None
    """The round that was open when the operator took it out of the run; null for a member."""


@dataclass(frozen=True, kw_only=True)
class RunRecord(Record):
    """config.json: one run, as it was set up. Written when all seats are taken, and at every later join."""

    algorithm: str
    """Its name: a built-in one, or that of an installed package."""
    model: str
    """Built-in name or module:factory."""
    dataset: str
    """Built-in name or module:factory; none where all data are at the clients."""
    num_clients: Positive
    """N, also where it was found out by waiting for clients (`gather`)."""
    variates: str = "explicit"
    """Whether control variates are sent (explicit) or computed on both sides (derived)."""
    codec: tuple[str, ...] = ()
    """How tensors are coded, as given; empty for 32-bit floats as they are."""
    others: dict[str, Setting] = field(metadata=REST)
    """Every other setting of the run under its own name; docs/settings.md describes them."""
    run_id: str
    """Drawn at the start; clients keep what they remember under it."""
    fingerprint: str
    """SHA-256 over names, types and shapes of the model's tensors."""
    num_classes: Positive
    """Classes that the model tells apart."""
    svr_names: tuple[str, ...]
    """Names of the tensors in S_svr; with --svr auto at this writing: rounds.jsonl has them by round."""
    personal_names: tuple[str, ...] = ()
    """Names of the tensors that each client keeps for itself."""
    frozen_names: tuple[str, ...] = ()
    """Names of the tensors that stay as they are."""
    frozen_sha256: str = ""
    """SHA-256 over their names, shapes and values; empty if there are none."""
    init_sha256: str = ""
    """SHA-256 of the file that the run started from; empty where the seed made all values."""
    class_names: tuple[str, ...]
    """By class number."""
    example_limit: Count | None = None
    """With --weighting examples: as many examples a client can count with, whatever it claims."""
    clients: tuple[Seat, ...]
    """By index; those who join later are added."""

    @classmethod
    def of(cls, settings: Mapping[str, object], **known: object) -> RunRecord:
        """The record of a run with these settings; `known` has the fields that are no settings."""
        return form.read(cls, json.loads(form.text({**settings, **known, "format": FORMAT})))

    @property
    def settings(self) -> dict[str, Setting]:
        """All settings by name."""
        return {name: getattr(self, name) for name in _NAMED} | self.others


_NAMED = ("algorithm", "model", "dataset", "num_clients", "variates", "codec")


def read_run_record(run_dir: Path) -> RunRecord:
    """config.json of a run directory."""
    return json_files.read(run_dir / CONFIG, RunRecord, _DAMAGED)
