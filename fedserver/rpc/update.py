"""An update as its header announces it, held against what the server knows of the client and the run."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import replace

from common.errors import Fault, WireError, printable
from common.metrics import drift
from common.metrics.message import from_message
from common.server_step.rules import Rules
from common.tensors.layout import Flat, Purpose
from fedpvr.v1 import federation_pb2 as pb
from fedserver.members.seats import Member
from fedserver.run.round import Round, Update
from fedserver.run.run import Run

_ID = re.compile("[0-9a-f-]{1,64}")
MAX_LOSS = 1e9
MAX_TRAIN_S = 1e7
"""Four months."""
MAX_REASON = 200
"""Characters of a client's own words that are kept."""
_RULE = re.compile("[a-z_]{1,40}")


def read_update(header: pb.UpdateHeader, num_classes: int) -> Update:
    """What a client says of its update."""
    known, canary = (header.HasField(name) for name in ("validation_accuracy", "canary_pull_seconds"))
    return Update(
        client=header.client,
        round=header.round,
        steps=header.steps,
        examples=header.examples,
        loss=header.loss,
        fingerprint=header.fingerprint,
        validation_accuracy=header.validation_accuracy if known else None,
        update_id=header.update_id,
        train_seconds=header.train_seconds,
        evaluation=from_message(header.evaluation, num_classes) if header.HasField("evaluation") else None,
        pull_seconds=header.canary_pull_seconds if canary else None,
        drift=drift.from_message(header.measures) if header.HasField("measures") else None,
    )


def require_announced(update: Update, examples: int | None) -> None:
    """Raises for an evaluation on other examples than the client said it has for that."""
    found = update.evaluation
    if found is not None and found.examples != examples:
        raise WireError.broken_contract(
            f"evaluation: client {update.client!r} evaluates on {examples} examples, got {found.examples}"
        )


def rule_name(text: str) -> str:
    """The rule that a client's site names; nothing for what is no name of a rule."""
    return text if _RULE.fullmatch(text) else ""


def require_sound(update: Update, member: Member, fingerprint: str, rules: Rules) -> None:
    """Raises for an update of another model, or with numbers that cannot be true."""
    if update.fingerprint != fingerprint:
        raise WireError(
            Fault.WRONG_MODEL,
            f"the update is of another model: expected fingerprint {fingerprint[:12]}, "
            f"got {update.fingerprint[:12] or 'none'}",
        )
    if not _ID.fullmatch(update.update_id):
        got = printable(update.update_id, 80)
        raise WireError.broken_contract(f"update_id must be 1 to 64 hex digits and dashes, got {got!r}")
    if update.examples != member.examples:
        raise WireError.broken_contract(
            f"client {member.name!r} joined with {member.examples} examples, got {update.examples}"
        )
    steps = rules.steps(member.examples)
    if update.steps != steps:
        raise WireError.broken_contract(
            f"steps (K_i) must be {steps} in a round with {member.examples} examples, got {update.steps}"
        )
    if not math.isfinite(update.loss):
        raise WireError(Fault.NOT_FINITE, f"the training loss is {update.loss}; lower --eta-l?")
    _require_within("loss", update.loss, -MAX_LOSS, MAX_LOSS)
    _require_within("train_seconds", update.train_seconds, 0, MAX_TRAIN_S)
    _require_within("canary_pull_seconds", update.pull_seconds or 0.0, 0, MAX_TRAIN_S)
    if update.validation_accuracy is not None:
        _require_within("validation_accuracy", update.validation_accuracy, 0, 1)


def _require_within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise WireError.broken_contract(f"{name} must be from {least:g} to {most:g}, got {value:g}")


def decode(
    run: Run,
    current: Round,
    member: Member,
    update: Update,
    raw: Flat,
    room: Flat,
    seen: Collection[Purpose] = (),
) -> Update:
    """Turns the bytes that came into y_i and c_i+, in the upload's own file, where there is room for them.

    Raises unless it is finite, and c_i+ follows from y_i. Numbers of the purposes in `seen` are finite as
    they were before they were coded.
    """
    c_i = run.variates.read(member.index) if run.layout.indices(Purpose.CONTROL) else None
    values = current.reader.values(raw, c_i, update.steps, room, seen)
    return replace(update, follows=current.reader.require_following(values, c_i, update.steps))
