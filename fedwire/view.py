"""What the inspector found, for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from common.errors import printable
from common.wire.messages import CANARY, FROZEN, PURPOSES
from fedwire.diff import Difference
from fedwire.message import Numbers, Shown
from fedwire.replay.replay import Verdict
from fedwire.source import MessageRow
from fedwire.stats import Statistics

WORD = 200
"""Characters that are shown of a name from the capture."""


class _Rows:
    """A table. Its cells may be words of peers: they are cut, and cannot steer a terminal."""

    def __init__(self, *headings: str, left: Sequence[str] = ()) -> None:
        self.table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
        for heading in headings:
            self.table.add_column(heading, justify="left" if heading in left else "right", overflow="fold")

    def add(self, *cells: str) -> None:
        """Adds a row."""
        self.table.add_row(*(printable(cell, WORD) for cell in cells))


class _Screen:
    """Where everything goes: nothing is markup. Rows are not cut where the output goes into a file."""

    def __init__(self) -> None:
        console = Console(highlight=False, markup=False)
        self._console = console if console.is_terminal else Console(highlight=False, markup=False, width=200)

    def say(self, line: str) -> None:
        """One line."""
        self._console.print(printable(line))

    def show(self, rows: _Rows) -> None:
        """A table."""
        self._console.print(rows.table)


def show_messages(rows: list[MessageRow]) -> None:
    """One plain line a message: there may be very many."""
    out = sys.stdout
    names = max([6, *(len(row.client) for row in rows)])
    form = f"{{:>6}}  {{:15}}  {{:4}}  {{:{names}}}  {{:>5}}  {{:14}}  {{:10}}  {{:>9}}  {{:7}}  {{}}\n"
    out.write(form.format("#", "time", "way", "client", "round", "rpc", "kind", "bytes", "purpose", "tensor"))
    for row in rows:
        out.write(
            form.format(
                row.number,
                row.time[11:26],
                row.direction,
                printable(row.client or "-", WORD),
                row.round or "-",
                printable(row.rpc, WORD),
                row.kind,
                f"{row.bytes:,}",
                row.purpose,
                printable(row.tensor or "-", WORD),
            )
        )
    out.write(f"{len(rows)} messages, {sum(row.bytes for row in rows):,} bytes\n")


def show_message(shown: Shown) -> None:
    """Fields first, then tensors."""
    screen = _Screen()
    flat = {name: value for name, value in vars(shown.row).items() if value not in ("", None)}
    # The bytes of a chunk are the payload, which is there already; those of the message are more.
    chunk = {k: v for k, v in shown.chunk.as_json().items() if k != "bytes"} if shown.chunk else {}
    # What ls says of the message is not replaced by a field of the same name.
    for name, value in (flat | (shown.fields or {}) | chunk | flat).items():
        screen.say(f"{name:>20}  {_short(value)}")
    if shown.tensors is None:
        return
    words = ("name", "purpose", "dtype", "shape", "codec")
    table = _Rows(*words, "bytes", "norm", "min", "max", "NaN", "zeros", left=words)
    for tensor in shown.tensors:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        about = (tensor.name, tensor.purpose, tensor.dtype, shape, tensor.codec, f"{tensor.bytes:,}")
        table.add(*about, *_cells(tensor.numbers))
    screen.show(table)
    for problem in sorted({tensor.problem for tensor in shown.tensors if tensor.problem}):
        screen.say(problem)


def _cells(found: Numbers | None) -> tuple[str, ...]:
    if found is None:
        return ("-",) * 5
    sizes = ("-" if n is None else f"{n:.4g}" for n in (found.norm, found.min, found.max))
    return (*sizes, str(found.nan), f"{found.zeros:.1%}")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def show_statistics(found: Statistics) -> None:
    """Tables by round, client and tensor, and the comparison."""
    screen = _Screen()
    seldom = (FROZEN, CANARY)
    known = [p for p in seldom if any(getattr(way, p) for way in (found.bytes.down, found.bytes.up))]
    purposes = [p for p in (*PURPOSES, CANARY) if p not in seldom or p in known]
    rounds = _Rows("round", "direction", *purposes, "total", left=("direction",))
    named = {("none" if r == 0 else str(r)): counts for r, counts in found.rounds.items()}
    for r, both in [*named.items(), ("all", found.bytes)]:
        for direction, counts in (("down", both.down), ("up", both.up)):
            cells = (f"{getattr(counts, purpose) or 0:,}" for purpose in purposes)
            rounds.add(r, direction, *cells, f"{counts.total:,}")
    screen.show(rounds)
    clients = _Rows("client", "direction", "payload", "encoded", left=("client", "direction"))
    for client, directions in found.clients.items():
        for direction, sizes in directions.items():
            clients.add(client or "(no seat)", direction, f"{sizes.payload:,}", f"{sizes.encoded:,}")
    screen.show(clients)
    words = ("direction", "purpose", "tensor or message")
    tensors = _Rows(*words, "payload", "encoded", left=words)
    for row in found.tensors:
        tensors.add(row.direction, row.purpose, row.tensor, f"{row.payload:,}", f"{row.encoded:,}")
    screen.show(tensors)
    screen.say(f"{found.messages} messages")
    if found.ratios.fedavg is not None:
        screen.say(
            f"tensor bytes: {found.ratios.fedavg:.4f} of FedAvg's, "
            f"{found.ratios.scaffold:.4f} of SCAFFOLD's for the same transfers in full precision"
        )
    if found.differences is not None:
        for line in found.differences:
            screen.say(line)
        if not found.differences:
            screen.say("the run's ledger agrees to the byte, in every round, direction and purpose")


def show_differences(rows: list[Difference]) -> None:
    """One line a difference."""
    screen = _Screen()
    if not rows:
        screen.say("the captures do not differ")
        return
    words = ("client", "direction", "purpose", "tensor", "what")
    table = _Rows("round", *words, left=words)
    for row in rows:
        table.add(str(row.round or "-"), *(getattr(row, word) or "" for word in words))
    screen.show(table)


def show_verdicts(verdicts: Sequence[Verdict]) -> None:
    """One line a round."""
    screen = _Screen()
    for verdict in verdicts:
        same = {True: "the same to the bit as", False: "DIFFERS from", None: "cannot be compared with"}
        screen.say(
            f"round {verdict.round}: {verdict.updates} updates give x and c {same[verdict.same]} "
            f"{verdict.compared}"
        )
        for line in verdict.problems:
            screen.say(f"    {line}")
    if not verdicts:
        screen.say("no round with updates is in the capture")
