"""A run on one screen of a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from fedserver.console.frame import FINISHED, STOPPED, Frame, SeenClient, SeenEvent, doing

BARS = "▁▂▃▄▅▆▇█"
NARROW = 60
"""Columns below which a client has fewer."""
FEW_EVENTS = 3
_STATE_STYLES = {"training": "green", "uploading": "cyan", "answered": "dim", "held": "yellow"}
_PHASE_STYLES = {"training": "bold green", FINISHED: "bold green", STOPPED: "bold red"}


def screen(frame: Frame, columns: int, lines: int) -> RenderableType:
    """All of it, in at most so many lines."""
    head = [_title(frame), *_progress(frame, columns), *_curves(frame, columns)]
    sent = _bytes(frame)
    # A table has a heading and a rule below it; then come two rules with titles.
    room = lines - len(head) - (4 if frame.bytes else 0) - 4
    shown = min(len(frame.clients), max(room - min(len(frame.events), FEW_EVENTS), 1))
    clients: list[RenderableType] = [_clients(frame, shown, columns)] if frame.clients else []
    hidden = len(frame.clients) - shown + frame.others
    if hidden:
        clients.append(Text(f"and {hidden} others", style="dim"))
    left = max(room - shown - bool(hidden), FEW_EVENTS)
    return Group(*head, Text(), *clients, *sent, *_events(frame.events[-left:]))


def _title(frame: Frame) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{frame.algorithm} ", "bold").append(f"{frame.model} on {frame.dataset}   ")
    return text.append(f"run {frame.run_id}   {frame.source}", "dim")


def _progress(frame: Frame, columns: int) -> list[RenderableType]:
    closed = frame.round - (frame.phase == "training")
    times = [f"open for {duration(frame.open_s)}"] if frame.open_s is not None else []
    times += [f"about {duration(frame.left_s)} left"] if frame.left_s is not None else []
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row(
        Text(doing(frame), _PHASE_STYLES.get(frame.phase, "bold")),
        ProgressBar(total=max(frame.rounds, 1), completed=closed, width=min(30, columns // 4)),
        Text(", ".join(times), no_wrap=True),
    )
    rows: list[RenderableType] = [table]
    if frame.phase == STOPPED and frame.outcome:
        rows.append(Text(frame.outcome, "red", no_wrap=True, overflow="ellipsis"))
    if frame.lost:
        rows.append(Text(f"not in the model: {', '.join(frame.lost)}", "bold red"))
    return rows


def _curves(frame: Frame, columns: int) -> list[RenderableType]:
    """Accuracy and loss by round, the newest on the right."""
    if not frame.evaluations:
        return [Text("accuracy  not evaluated yet", "dim")]
    width = columns - 22
    last = frame.evaluations[-1]
    accuracy = Text("accuracy  ").append(f"{last.accuracy:7.2%}  ", "bold")
    accuracy.append(sparkline([each.accuracy for each in frame.evaluations], width), "green")
    losses = [each.loss for each in frame.evaluations if each.loss is not None]
    if not losses:
        return [accuracy]
    loss = Text("loss      ").append(f"{losses[-1]:7.4f}  " if last.loss is not None else "      -  ", "bold")
    return [accuracy, loss.append(sparkline(losses, width), "cyan")]


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as bars between the least and the greatest of them."""
    values = values[-width:]
    low, high = min(values), max(values)
    step = (high - low) / (len(BARS) - 1)
    return "".join(BARS[round((value - low) / step) if step else 0] for value in values)


def _clients(frame: Frame, shown: int, columns: int) -> Table:
    """Those who are not there come first, or a crowd would hide them."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("client", no_wrap=True, max_width=24)
    table.add_column("state", no_wrap=True, overflow="ellipsis", min_width=14, max_width=columns // 2)
    for title in ("last heard of", "in round", "examples") if columns >= NARROW else ():
        table.add_column(title, no_wrap=True, justify="right")
    ordered = sorted(frame.clients, key=lambda client: not client.absent)
    for client in ordered[:shown]:
        state = client.state if client.upload is None else f"{client.state} {client.upload:.0%}"
        cells = [
            Text(client.name),
            Text(f"{state}: {client.why}" if client.why else state, _style(client)),
            Text(_ago(client.silent_s)),
            Text(str(client.counted_round or "-")),
            Text(f"{client.examples:,}"),
        ]
        table.add_row(*cells[: len(table.columns)])
    return table


def _style(client: SeenClient) -> str:
    return "bold red" if client.absent else _STATE_STYLES.get(client.state, "")


def _bytes(frame: Frame) -> list[RenderableType]:
    if not any(frame.bytes.values()):
        return []
    purposes = list(dict.fromkeys(purpose for counts in frame.bytes.values() for purpose in counts))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("bytes")
    for purpose in (*purposes, "total"):
        table.add_column(purpose, justify="right", no_wrap=True)
    for direction, counts in frame.bytes.items():
        numbers = [counts.get(purpose, 0) for purpose in purposes]
        table.add_row(direction, *(size(number) for number in (*numbers, sum(numbers))))
    return [Text(), table]


def _events(events: Sequence[SeenEvent]) -> list[RenderableType]:
    lines: list[RenderableType] = [Rule("events", style="dim", align="left")]
    for event in events:
        line = Text(f"{event.time} ", "dim", no_wrap=True, overflow="ellipsis")
        lines.append(line.append(event.text, "red" if event.warning else "default"))
    return lines


def size(count: int) -> str:
    """Bytes in at most six characters and a unit."""
    value, units = float(count), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while value >= 9999.5 and unit != "TB":
        value, unit = value / 1000, next(units)
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:,.1f} {unit}"


def duration(seconds: float) -> str:
    """Such as 8 s, 3 min, 2 h 5 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else "now" if seconds < 1 else f"{duration(seconds)} ago"
