"""The page of a site: what it has of the federation, what it gave, and who else took part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.records.client import KnownRun
from common.records.provenance import Provenance
from fedclient.worth.counts import Confusion
from fedclient.worth.page import Page

MOST_CLASSES = 200
MOST_CLIENTS = 200


@dataclass(frozen=True)
class Outgoing:
    """Something that left the site: when, in which round, how many bytes."""

    time: str
    round: int
    num_bytes: int


@dataclass(frozen=True)
class Findings:
    """What the page is about."""

    client: str
    run: KnownRun
    tested_on: str
    judged: Mapping[str, Confusion]
    """By the model's kind, in the order of the page."""
    provenance: Provenance | None
    """What the model says of itself, if it does."""
    departures: tuple[Outgoing, ...] = ()
    """What the site has written down of them; empty where it keeps no such book."""


def write_page(found: Findings, out: Path) -> None:
    """Writes it."""
    run = found.run
    page = Page(f"{found.client} in run {run.run_id}")
    page.heading("Is it worth it?")
    rows = []
    for name, counts in found.judged.items():
        share = counts.accuracy
        low, high = share.interval
        rows.append((name, share.text(), low, share.hits / max(share.examples, 1), high))
    page.intervals(("model", "accuracy (95 % interval)", "0 to 100 %"), rows)
    examples = next(iter(found.judged.values())).accuracy.examples
    page.text(f"On {found.tested_on}: {examples} examples. Intervals are Wilson's for a share.", note=True)
    _classes(page, found)
    _sent(page, found)
    _others(page, found)
    page.write(out)


def _classes(page: Page, found: Findings) -> None:
    page.heading("By class")
    names, first = found.run.class_names, next(iter(found.judged.values()))
    rows = []
    for k in range(min(found.run.num_classes, MOST_CLASSES)):
        name = names[k] if k < len(names) else str(k)
        recalls = [counts.recall(k).text() for counts in found.judged.values()]
        rows.append([name, str(first.recall(k).examples), *recalls])
    page.table(["class", "examples", *found.judged], rows)
    page.text("The share of each class's examples that is recognised, with its interval.", note=True)


def _sent(page: Page, found: Findings) -> None:
    page.heading("What this site sent")
    each = found.run.update_bytes
    if found.departures:
        rows = [[d.time, str(d.round), f"{d.num_bytes:,}"] for d in found.departures]
        page.table(["when", "round", "bytes"], rows)
        return
    own = _own_part(found)
    if own is None:
        page.text(
            f"An update of this run has {each:,} bytes of tensors; the model does not say which counted."
        )
    else:
        which = f" (rounds {own[1]})" if own[1] else ""
        page.text(
            f"{own[0]} updates that count{which}, of {each:,} bytes of tensors each: {own[0] * each:,} bytes."
        )


def _own_part(found: Findings) -> tuple[int, str] | None:
    parts = found.provenance.clients if found.provenance is not None else ()
    return next(((part.rounds, part.took_part) for part in parts if part.name == found.client), None)


def _others(page: Page, found: Findings) -> None:
    page.heading("Who else took part")
    told = found.provenance
    if told is None:
        page.text(f"{found.run.num_clients - 1} others; the model does not say who.")
        return
    rows = [
        [part.name, f"{part.examples:,}", str(part.rounds), part.took_part or "-", _left_out(part.left_out)]
        for part in told.clients[:MOST_CLIENTS]
        if part.name != found.client
    ]
    page.table(["client", "examples", "rounds", "which", "left out"], rows)
    more = told.more_clients + max(0, len(told.clients) - MOST_CLIENTS)
    if more:
        page.text(f"and {more} more.")


def _left_out(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{which} ({reason})" for reason, which in reasons.items()) or "-"
