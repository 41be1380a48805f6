"""Runs as the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

from common.errors import StateError
from common.live.view import RunView
from fedserver.metrics.families import BUILD_INFO, FAMILIES, ROUND_SECONDS
from fedserver.metrics.family import Series, head, sample
from fedserver.metrics.values import durations

RUN = "run"
"""The label that every series of a run has: its id."""
MOST_LOOKS = 20
"""A look reads a part of a long traffic.jsonl; the first scrapes of a long run take several."""


def metrics_text(views: Iterable[RunView]) -> bytes:
    """All metrics of some runs, as they were when the views were last refreshed."""
    # A run that is there twice, under two paths, must not have a series twice.
    runs = {run_id: view for view in views if (run_id := _run_id(view)) is not None}.items()
    name, kind, text, label = BUILD_INFO
    parts = [head(name, kind, text), sample(name, {label: version("fedpvr")}, 1)]
    for family in FAMILIES:
        parts.append(head(family.name, family.kind, family.text))
        for run_id, view in runs:
            series = Series(family.labels, family.fold)
            family.fill(view, series)
            for labels, value in series.values.items():
                named = dict(zip(family.labels, labels, strict=True))
                parts.append(sample(family.name, {RUN: run_id} | named, value))
    return "".join([*parts, *_round_seconds(runs)]).encode()


def _round_seconds(runs: Iterable[tuple[str, RunView]]) -> Iterable[str]:
    name, kind, text, label = ROUND_SECONDS
    yield head(name, kind, text)
    for run_id, view in runs:
        for part, histogram in durations(view).items():
            for suffix, end, value in histogram.samples():
                labels = {RUN: run_id, label: part} | ({"le": end} if end else {})
                yield sample(name + suffix, labels, value)


def _run_id(view: RunView) -> str | None:
    told = view.live or view.config
    return None if told is None else told.run_id


def refreshed(views: Iterable[RunView]) -> bytes:
    """The same, as they are now; a run whose files are damaged is told as it was before."""
    known = list(views)
    for view in known:
        try:
            for _ in range(MOST_LOOKS):
                if not view.refresh().traffic:
                    break
        except StateError:
            continue
    return metrics_text(known)
