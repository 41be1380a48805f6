"""An update as its header announces it, held against what the server knows of the client and the run."""

from __future__ import annotations

import math
import re

from common.errors import Fault, WireError, printable
from fedpvr.v1 import federation_pb2 as pb
from fedserver.members.seats import Member
from fedserver.run.round import Round, Update
from fedserver.run.run import Run
from fedserver.store.spool import Upload

_ID = re.compile("[0-9a-f-]{1,64}")
MAX_REASON = 200
"""Characters of a client's own words that are kept."""


def read_update(header: pb.UpdateHeader) -> Update:
    """What a client says of its update."""
    known = header.HasField("validation_accuracy")
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
    )


def require_sound(update: Update, member: Member, fingerprint: str) -> None:
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
    if update.steps < 1:
        raise WireError.broken_contract(f"steps (K_i) must be at least 1, got {update.steps}")
    if update.examples != member.examples:
        raise WireError.broken_contract(
            f"client {member.name!r} joined with {member.examples} examples, got {update.examples}"
        )
    if not 0 <= update.train_seconds < math.inf:
        raise WireError.broken_contract(f"train_seconds must not be negative, got {update.train_seconds}")
    if not math.isfinite(update.loss):
        raise WireError(Fault.NOT_FINITE, f"the training loss is {update.loss}; lower --eta-l?")


def decode(run: Run, current: Round, member: Member, update: Update, upload: Upload) -> None:
    """Turns what came into y_i and c_i+, in the upload's own file; raises unless it is whole and finite."""
    upload.require_whole()
    c_i = run.variates.read(member.index) if current.rules.derived else None
    current.reader.values(upload.raw, c_i, update.steps, upload.values)
