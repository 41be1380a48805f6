"""`fedserver track`, and the flags of `fedserver run` for its companions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from common import commandline
from common.access import cli as access_cli
from common.events import Emit, Trouble
from common.processes.companion import companion

TRACK_S = 120.0
"""How long trackers may take after the end of a run; what is missing then can be told later."""
METRICS_S = 5.0


@click.command(
    epilog=commandline.example("fedserver track runs/a --to tensorboard=tb --to mlflow=sqlite:///ml.db")
)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "targets",
    multiple=True,
    required=True,
    metavar="TRACKER",
    help="tensorboard=DIR or mlflow=URI; may be given several times.",
)
def track(run_dir: Path, targets: tuple[str, ...]) -> None:
    """Tell TensorBoard or MLflow of a run that is there. What they have of it is not told again."""
    from fedserver.track.follow import tell_all
    from fedserver.track.tracker import target

    for each, count in tell_all(run_dir, [target("--to", text) for text in targets]).items():
        click.echo(f"{each}: {count} new values" if count else f"{each}: nothing new")


@dataclass(frozen=True)
class Companions:
    """What is to run beside a server, each in a process of its own: see `common.processes.companion`."""

    prometheus: str | None
    track: tuple[str, ...]

    @contextmanager
    def started(self, run_dir: Path, insecure: bool, emit: Emit) -> Iterator[None]:
        """It runs while the block serves the run."""
        with ExitStack() as stack:
            if self.prometheus is not None:
                stack.enter_context(_metrics(run_dir, self.prometheus, insecure, emit))
            if self.track:
                stack.enter_context(_trackers(run_dir, self.track, emit))
            yield


def companion_options(section: str) -> Callable[[Any], Any]:
    """The flags of `fedserver run`, which gets what they ask for as `companions`."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def command(*args: Any, prometheus: str | None, track: tuple[str, ...], **kwargs: Any) -> Any:
            return function(*args, companions=Companions(prometheus, track), **kwargs)

        command = commandline.option(
            section,
            "--track",
            multiple=True,
            metavar="TRACKER",
            help="Tell a tracker of every round: tensorboard=DIR or mlflow=URI; may be given several times.",
        )(command)
        return commandline.option(
            section,
            "--prometheus",
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus there, for example 127.0.0.1:9464; see docs/monitoring.md.",
        )(command)

    return decorate


@contextmanager
def _metrics(run_dir: Path, address: str, insecure: bool, emit: Emit) -> Iterator[None]:
    from fedserver.events.companions import MetricsServed
    from fedserver.metrics.serving import PATH, listen

    access_cli.require_address("--prometheus", address)
    with listen("--prometheus", address, insecure=insecure) as listening:
        fd, port = listening.fileno(), listening.getsockname()[1]
        emit(MetricsServed(url=f"http://{address.rpartition(':')[0]}:{port}{PATH}"))
        with companion("fedserver.metrics", [str(fd), str(run_dir)], METRICS_S, pass_fds=[fd]):
            yield


@contextmanager
def _trackers(run_dir: Path, track: tuple[str, ...], emit: Emit) -> Iterator[None]:
    from fedserver.events.companions import Tracked
    from fedserver.track.tracker import target

    targets = [str(target("--track", text)) for text in dict.fromkeys(track)]
    for each in targets:
        emit(Tracked(target=each))
    again = " ".join(["fedserver track", str(run_dir), *(f"--to {each}" for each in targets)])
    late = Trouble(reason=f"trackers are not done; tell them the rest with: {again}")
    arguments = [str(run_dir), *targets]
    with companion("fedserver.track", arguments, TRACK_S, overdue=lambda: emit(late)):
        yield
