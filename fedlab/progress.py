"""Progress bars: a listener that stands in for log lines where a person watches a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from common.events import Emit, Event, Level, TextLog
from fedlab.events import MethodAdvanced, MethodStarted, RunFinished, RunsPlanned


@contextmanager
def bars_for(emit: Emit, console: Console) -> Iterator[Emit]:
    """A listener that draws bars if lines for people would go to a terminal; otherwise `emit` itself."""
    if not (console.is_terminal and isinstance(emit, TextLog) and emit.least <= Level.NOTICE):
        yield emit
        return
    with Progress(
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        yield Bars(progress)


class Bars:
    """A bar for each method of the demo, or one for all runs of an experiment."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar = TaskID(0)
        self._methods: dict[str, TaskID] = {}

    def __call__(self, event: Event) -> None:
        """Moves a bar, or prints what is about none."""
        match event:
            case MethodStarted():
                bar = self._progress.add_task(event.method, total=event.rounds, note="starting")
                self._methods[event.method] = bar
            case MethodAdvanced():
                bar, note = self._methods[event.method], f"accuracy {event.accuracy:.1%}"
                self._progress.update(bar, completed=event.round, note=note)
            case RunsPlanned():
                self._bar = self._progress.add_task(
                    "runs", total=event.total, completed=event.finished, note=""
                )
            case RunFinished():
                note = f"about {event.seconds_left / 60:.0f} min left"
                self._progress.update(self._bar, advance=1, note=note)
            case _:
                self._progress.console.print(event.text(), highlight=False, markup=False)
