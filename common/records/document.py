"""Prints docs/run-directory.md: every file that a run and its clients leave behind, from the types."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from typing import get_args

from common.live.record import EVENTS, LIVE, LiveRecord, LoggedEvent
from common.records.base import FORMAT, described, members
from common.records.checkpoint import CheckpointNote
from common.records.cka import CKA, CkaRecord
from common.records.client import (
    APPROVALS,
    OUTBOX,
    OUTBOX_HEAD,
    AskedApproval,
    Baseline,
    GivenApproval,
    KnownRun,
    OutboxEntry,
    OutboxHead,
    Owner,
)
from common.records.conformal import ConformalRecord
from common.records.provenance import Provenance
from common.records.rounds import RoundRecord
from common.records.run import RunRecord
from common.records.traffic import RoundTraffic, TrafficRecord

INTRODUCTION = f"""\
# The run directory

Written by `python -m common.records.document` (`make docs`) from the types that read and write these files.

`fedserver run --run-dir DIR` and `fedlab simulate` leave these files in DIR. A `.jsonl` file has one JSON
document a line and grows, by a line a round or an event; every other file is replaced whole, so after a crash
there is the old one or the new one. A number that is not finite is null. Later releases may add keys: pass
over those you do not know.

`format` is {FORMAT} in what this release writes, and grows when an older release would misread it; a file of
a later format is refused. Releases before formats wrote no `format`. That is format 1, which is read, and
brought up to date when its run goes on: it had what is in traffic.jsonl in rounds.jsonl, norms by client
index, and a bare list in conformal.json.

A round counts from the moment its checkpoint is there. Its line in traffic.jsonl is written before, and
dropped when the run goes on if the checkpoint was not reached. Its line in rounds.jsonl is written once x is
evaluated, and made from the checkpoint when the run goes on if the server did not get that far. So both have
each closed round once, whenever a server is killed. If one of them has a damaged line when the run goes on,
it is kept as `NAME.damaged-N`; the good lines are taken over, and what is missing in rounds.jsonl is written
again from the checkpoints that are there.

Every file of tensors has a `crc32c` in its metadata: eight hexadecimal digits over the rest of the metadata
and the bytes of all tensors. It is checked whenever the file is read back, and a file without one is of an
earlier release and taken as it is. A server that finds a checkpoint or a variate damaged goes back to the
checkpoint before; a client drops a damaged c_i and gets the server's copy.

Files of tensors, updates and messages can be read by their owner only (0600), and the folders in which they
lie (`ledger`, `checkpoints`, `spool`, a client's state directory) be opened by nobody else (0700). JSON files
of the run directory, which are for people, are as the umask says.
"""
CLIENT = """
## The state directory of a client

`fedclient run --state-dir DIR` keeps a folder `run-ID` for each run, and `lock`, held by a running client.
"""


@dataclass(frozen=True)
class Entry:
    """A file, or a folder of files that are alike."""

    name: str
    text: str
    record: type | None = None


RUN_DIRECTORY = (
    Entry("config.json", "The settings, what came of them, and who has which seat.", RunRecord),
    Entry("rounds.jsonl", "One closed round a line.", RoundRecord),
    Entry("traffic.jsonl", "The bytes of one closed round a line, in full detail.", RoundTraffic),
    Entry(
        CKA,
        "With --cka: how alike the models of clients were, pair by pair, one line for a closed round after\n"
        "which x was evaluated. It counts with its round, as a line of traffic.jsonl does.",
        CkaRecord,
    ),
    Entry("traffic.json", "The bytes since the server started; written when it ends.", TrafficRecord),
    Entry(
        LIVE,
        "What the run is doing now, for those who watch. Replaced when something has changed, at most once\n"
        "a second; it need not survive a power cut. Nothing reads it back when the run goes on.",
        LiveRecord,
    ),
    Entry(
        EVENTS,
        "What has happened, one event a line as `fedserver run --log-format json --verbose` prints them.\n"
        "Later processes of the run go on in the same file. It is not synced: after a power cut its end may\n"
        "be missing, or a line be torn.",
        LoggedEvent,
    ),
    Entry(
        "conformal.json", "Prediction sets of the final x; a run that has it is finished.", ConformalRecord
    ),
    Entry(
        "model.safetensors",
        "x after the last closed round, buffers included, by state-dict names, and the frozen tensors;\n"
        "nothing that is personal, which only clients have. It follows the newest\n"
        "checkpoint, by moments or, where rounds are quicker than the disk, by a few of them; when the\n"
        "server ends, or goes on after it was killed, they agree. In its metadata, under `provenance`, is\n"
        "this note as JSON text, which `fedlab card` prints; some hundred bytes for a client at the most.",
        Provenance,
    ),
    Entry(
        "best.safetensors",
        "With --best: the x that was best by that metric, in the same form. In its metadata, under\n"
        "`best`, is JSON text with `run`, `round`, `metric` and `value`.",
    ),
    Entry(
        "control.safetensors",
        "c after the same round, by the names of S_svr; empty without one.",
    ),
    Entry(
        "checkpoints/round-RRRRRR.safetensors",
        "The state after each of the last three rounds: x (`model/NAME`), buffers (`buffer/NAME`),\n"
        "c (`control/NAME`) and, for FedDyn, h (`h/NAME`). In its metadata, under `checkpoint`, is this\n"
        "note as JSON text. It grows with the number of clients, but not with clients times tensors.",
        CheckpointNote,
    ),
    Entry(
        "checkpoints/spare",
        "While a run goes on: a checkpoint that is not kept any more, which the next is written over,\n"
        "unless it has another name too. Copy a checkpoint rather than keep it open.",
    ),
    Entry(
        "ledger/client-IIIII-round-RRRRRR.safetensors",
        "The variate of client IIIII as it counted last, in that round: c_i, or FedDyn's l_i.",
    ),
    Entry(
        "checkpoints/ledger/client-IIIII-round-RRRRRR.safetensors",
        "Variates that one of the older checkpoints needs.",
    ),
    Entry(
        "clients/",
        "Of a simulation that goes on, `IIIII/RRRRRR`: what client IIIII keeps of round RRRRRR besides its\n"
        "variate, as raw bytes: what codecs left out, then its personal tensors. Removed at its end.",
    ),
    Entry("spool/", "Updates of the open round; removed when it closes, and at every start."),
    Entry(".lock", "Held by the server that writes here."),
    Entry(
        ".track-HHHHHHHH.lock", "Held by the process that tells a tracker of this run, one for each tracker."
    ),
)
STATE_DIRECTORY = (
    Entry("run-ID/owner.json", "Whose state it is; that of another client or model is refused.", Owner),
    Entry(
        "run-ID/variate-RRRRRR.safetensors",
        "The client's c_i after round RRRRRR, what codecs left out (`residual.NAME`), and its personal\n"
        "tensors (`personal.NAME`).",
    ),
    Entry("run-ID/frozen.safetensors", "The frozen tensors, which the server sends once."),
    Entry("run-ID/run.json", "What the client was asked to train; `fedclient baseline` reads it.", KnownRun),
    Entry("run-ID/baseline.json", "What `fedclient baseline` has done.", Baseline),
    Entry("run-ID/baseline.safetensors", "The model that it has trained, by state-dict names."),
    Entry("run-ID/update.parcel", "The update that the server has not counted yet, as it travels."),
    Entry(
        "run-ID/midround.safetensors",
        "Where a long round is: y_i, momentum, random state, steps. A restarted client goes on from there.",
    ),
    Entry(
        "site.toml", "What may leave; see [site-policy.md](site-policy.md). Only there are the files below."
    ),
    Entry(OUTBOX, "What has left, one entry a line, each bound to the one before by its hash.", OutboxEntry),
    Entry(OUTBOX_HEAD, "The end of that log, so that entries missing there are noticed.", OutboxHead),
    Entry(f"{APPROVALS}/KIND.json", "A kind of run that was asked for.", AskedApproval),
    Entry(f"{APPROVALS}/KIND.approved.json", "That it is approved; remove it to undo that.", GivenApproval),
)


def document() -> str:
    """The whole text."""
    parts: list[type] = []
    text = INTRODUCTION + "".join(_section("##", entry, parts) for entry in RUN_DIRECTORY)
    text += CLIENT + "".join(_section("###", entry, parts) for entry in STATE_DIRECTORY)
    text += "\n## Parts of these records\n"
    # The list grows while its records name others.
    for kind in parts:
        text += _section("###", Entry(kind.__name__, inspect.getdoc(kind) or "", kind), parts)
    return text


def _section(level: str, entry: Entry, parts: list[type]) -> str:
    return f"\n{level} {entry.name}\n\n{entry.text}\n{_table(entry.record, parts) if entry.record else ''}"


def _table(kind: type, parts: list[type]) -> str:
    """The fields of a record; objects among them are added to `parts`."""

    def named(part: type) -> str:
        if part is RoundRecord:
            return "as in [rounds.jsonl](#roundsjsonl)"
        if part not in parts:
            parts.append(part)
        return f"[{part.__name__}](#{part.__name__.lower()})"

    rows, meanings = ["\n| key | value | meaning |\n|---|---|---|\n"], field_docstrings(kind)
    for each in fields(kind):
        form, key = members(kind)[each.name], f"`{each.name}`"
        if each.metadata.get("rest"):
            form, key = get_args(form)[1], "any other"
        value = described(form, named)
        if each.default is None:
            value = f"{value.removesuffix(' or null')}, or no such key"
        rows.append(f"| {key} | {value} | {' '.join(meanings[each.name].split())} |\n")
    return "".join(rows)


def field_docstrings(kind: type) -> dict[str, str]:
    """The text under each field of a dataclass, those it inherits included."""
    bases = reversed(kind.__mro__[:-1])
    return {name: text for base in bases for name, text in _own_docstrings(base).items()}


@cache
def _own_docstrings(kind: type) -> dict[str, str]:
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef), "the source of a class is a class"
    return {
        ast.unparse(field.target): ast.literal_eval(text.value)
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


if __name__ == "__main__":
    print(document(), end="")
