"""The status of a run and the certificates of a federation, for people."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from common.access.expiry import WARNED
from fedserver.console.status import ClientStatus, Evaluated, SitesStatus, Status
from fedserver.events.left_out import described
from fedserver.keys.issued import SERVER, Issued

MOST_COLUMNS = 10_000


def show_status(status: Status) -> None:
    """Prints a status as three small tables."""
    console = Console(markup=False)  # Names come from a peer.
    console.print(
        f"run {status.run_id}: {status.algorithm}, {status.model} on {status.dataset}; "
        f"{_phase(status)}{_evaluation(status.last)}",
        highlight=False,
    )
    if (days := _days_left(status.certificate_until)) is not None and days < WARNED.days:
        console.print(
            f"the server's certificate expires in {days} days; renew it with: "
            "fedserver certs issue --server --renew",
            style="bold red",
            highlight=False,
        )
    console.print(_clients(status.clients))
    if status.others:
        console.print(f"and {status.others} others, whom an operator can see", highlight=False)
    if status.sites is not None:
        console.print(_sites(status.sites))
    if status.left_out:
        console.print(_left_out(status), style="bold red", highlight=False)
    purposes = list(status.bytes["down"])
    traffic = Table("bytes", *purposes)
    for direction, counts in status.bytes.items():
        traffic.add_row(direction, *(f"{counts.get(purpose, 0):,}" for purpose in purposes))
    if purposes:
        console.print(traffic)
    by_client = Table("client", "direction", "payload", "encoded", "on the socket")
    for client, directions in status.traffic.items():
        for direction, sizes in directions.items():
            cells = ("-" if n is None else f"{n:,}" for n in (sizes.payload, sizes.encoded, sizes.socket))
            by_client.add_row(client or "(no seat)", direction, *cells)
    console.print(by_client)


def _clients(clients: Iterable[ClientStatus]) -> Table:
    table = Table("client", "number", "examples", "last counted", "state", "last seen")
    for client in clients:
        table.add_row(
            client.name,
            "-" if client.last_seen_seconds is None else str(client.index + 1),
            str(client.examples),
            str(client.counted_round),
            _state(client),
            _ago(client.last_seen_seconds),
        )
    return table


def _sites(found: SitesStatus) -> Table:
    """What clients found of x on data of their own, the worst of them marked."""
    rows = ({"all together": found.pooled} if found.pooled else {}) | found.clients
    table = Table(f"x after round {found.round}", *max(rows.values(), key=len, default=()))
    for name, values in rows.items():
        cells = ["-" if v is None else str(v) if isinstance(v, int) else f"{v:.4f}" for v in values.values()]
        table.add_row(f"{name} (worst)" if name == found.worst else name, *cells)
    return table


def _left_out(status: Status) -> str:
    """Rounds that closed without somebody; a client sees only its own."""
    told = [(each.client, each.rounds, each.reason) for each in status.left_out]
    closed = status.round - (status.phase == "training")
    return described(status.rounds_without or "some", closed, told)


def _state(client: ClientStatus) -> str:
    """What a client does, and why it takes no part; a site's refusal begins with the name of its rule."""
    why = client.reason or (f"rule {client.rule} of its site" if client.rule else "")
    return f"{client.state}: {why}" if why else str(client.state)


def _days_left(until: str | None) -> int | None:
    return None if until is None else max(0, (datetime.fromisoformat(until) - datetime.now(UTC)).days)


def _phase(status: Status) -> str:
    """What a run is doing; one that waits for clients says how many are missing."""
    if status.phase == "waiting" and status.needed:
        here = len(status.clients) + status.others
        return f"waiting, {here} of {status.needed} clients are here"
    return f"{status.phase}, round {status.round} of {status.rounds}"


def _evaluation(last: Evaluated | None) -> str:
    """How good the last evaluated x was, and what it took to know."""
    if last is None:
        return ""
    took = "" if last.seconds is None else f" (evaluated in {last.seconds:.1f} s)"
    return f", accuracy {last.accuracy:.2%} after round {last.round}{took}"


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else "now" if seconds < 1 else f"{seconds:.0f} s ago"


def show_certificates(entries: Iterable[Issued]) -> None:
    """Prints certificates as a table, with the beginning of each serial; no name is ever broken in two."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("name", "kind", "state", "until", "serial", "hosts"):
        table.add_column(title, no_wrap=True)
    for entry in entries:
        table.add_row(
            entry.name,
            entry.kind,
            entry.state,
            f"{entry.valid_until:%Y-%m-%d}",
            f"{entry.serial:x}"[:8],
            "\n".join(entry.sans if entry.kind == SERVER else ()),
        )
    console = Console(markup=False)
    needed = Measurement.get(console, console.options.update(max_width=MOST_COLUMNS), table).maximum
    console.width = max(console.width, needed)
    console.print(table)
