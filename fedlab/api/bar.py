"""How far a simulation is, for who watches a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from common.events import Emit, Event, unheard
from fedserver.config import RunConfig
from fedserver.events.rounds import RoundClosed, RoundEvaluated


@contextmanager
def bar(config: RunConfig, wanted: bool | None) -> Iterator[Emit]:
    """A listener that moves a bar; None: where somebody watches who can see one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    # In a notebook rich draws with ipywidgets, or warns that it cannot.
    possible = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    if not (possible if wanted is None else wanted):
        yield unheard
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), TimeElapsedColumn(), console=console) as drawn:
        task = drawn.add_task(config.algorithm, total=config.rounds, note="")

        def move(event: Event) -> None:
            if isinstance(event, RoundClosed | RoundEvaluated):
                note = "" if event.accuracy is None else f"accuracy {event.accuracy:.1%}"
                drawn.update(task, completed=event.round, note=note)

        yield move
