"""Where the values of each metric are in a run directory."""

from __future__ import annotations

from collections.abc import Callable

from common.live.record import ABSENT_STATES
from common.live.view import RunView
from fedserver.members.attendance import DECLINED, NO_ANSWER
from fedserver.metrics.family import Histogram, Names, Series

PHASES = ("preparing", "waiting", "training", "finished")
ACCEPTED, LATE, REFUSED, REJECTED, MISSING = "accepted", "late", "declined", "rejected", "missing"


def run_info(view: RunView, series: Series) -> None:
    """What is trained."""
    told = view.live or view.config
    if told is not None:
        series.add(1, told.algorithm, told.model, told.dataset)


def run_up(view: RunView, series: Series) -> None:
    """Whether the process lives, as far as that can be seen from here."""
    series.add(float(view.alive is not False))


def phases(view: RunView, series: Series) -> None:
    """One of them is 1."""
    now = "finished" if view.finished else view.live.phase if view.live is not None else ""
    for phase in PHASES:
        series.add(float(phase == now), phase)


def now(field: str) -> Callable[[RunView, Series], None]:
    """A number of live.json."""

    def fill(view: RunView, series: Series) -> None:
        if view.live is not None:
            series.add(getattr(view.live, field))

    return fill


def opened(view: RunView, series: Series) -> None:
    """Of a round that is open."""
    if view.live is not None and view.alive is not False and view.live.phase == "training":
        series.add(view.live.since)


def closed(view: RunView, series: Series) -> None:
    """How many there are."""
    series.add(len(view.rounds))


def newest(field: str) -> Callable[[RunView, Series], None]:
    """Of the newest round that has this number."""

    def fill(view: RunView, series: Series) -> None:
        values = (getattr(record, field) for record in reversed(view.rounds.values()))
        series.add(next((value for value in values if value is not None), None))

    return fill


def control_norms(view: RunView, series: Series) -> None:
    """All of them; the last one counts."""
    for record in view.rounds.values():
        series.add(record.norms.c)


def drift(view: RunView, series: Series) -> None:
    """By layer, of the last round."""
    drift = next(reversed(view.rounds.values())).layer_drift if view.rounds else {}
    label = Names(drift)
    for layer, xi in drift.items():
        series.add(xi, label(layer))


def _clients(view: RunView) -> Names:
    """By seat, so that who has series of his own does not change while a run goes on."""
    return Names(seat.name for seat in view.config.clients) if view.config is not None else Names(())


def clients_up(view: RunView, series: Series) -> None:
    """Nobody is there for a server that is not."""
    label = _clients(view)
    for client in view.live.clients if view.live is not None else ():
        series.add(float(view.alive is not False and client.state not in ABSENT_STATES), label(client.name))


def last_seen(view: RunView, series: Series) -> None:
    """Of a client whose call is open that would be now; it has none."""
    label = _clients(view)
    for client in view.live.clients if view.live is not None else ():
        series.add(client.heard_at, label(client.name))


def states(view: RunView, series: Series) -> None:
    """How many clients are in each."""
    for client in view.live.clients if view.live is not None else ():
        series.add(1, client.state)


def updates(view: RunView, series: Series) -> None:
    """By client and what became of them."""
    label = _clients(view)
    for record in view.rounds.values():
        uncounted = record.uncounted or {}
        for name in record.clients:
            series.add(1, label(name), REJECTED if name in uncounted else ACCEPTED)
        for name, reason in record.absent.items():
            outcome = LATE if reason == NO_ANSWER else REFUSED if reason.startswith(DECLINED) else MISSING
            series.add(1, label(name), outcome)


def sent(view: RunView, series: Series) -> None:
    """By direction and purpose."""
    for record in view.rounds.values():
        for direction, counts in vars(record.bytes).items():
            for purpose, count in counts.by_name().items():
                series.add(count, direction, purpose)


def sent_by_client(view: RunView, series: Series) -> None:
    """By client and direction."""
    label = _clients(view)
    for (client, direction), count in view.traffic.by_client.items():
        series.add(count, label(client), direction)


def on_sockets(view: RunView, series: Series) -> None:
    """By direction."""
    for direction, count in view.traffic.on_sockets.items():
        series.add(count, direction)


def at_sites(view: RunView, series: Series) -> None:
    """By client and metric, of the last evaluation."""
    label = _clients(view)
    found = next((record.sites for record in reversed(view.rounds.values()) if record.sites), None)
    for client, site in found.sites.items() if found is not None else ():
        for metric, value in site.metrics.items():
            series.add(value, label(client), metric)


def expiry(view: RunView, series: Series) -> None:
    """With TLS."""
    if view.live is not None and view.live.certificate is not None:
        series.add(view.live.certificate.expires)


def durations(view: RunView) -> dict[str, Histogram]:
    """What rounds took, by part."""
    found: dict[str, Histogram] = {}
    for record in view.rounds.values():
        for part, seconds in vars(record.seconds).items():
            if seconds is not None:
                found.setdefault(part, Histogram()).add(seconds)
    return found


def the_last(_: float, value: float) -> float:
    """Of two values the later."""
    return value
