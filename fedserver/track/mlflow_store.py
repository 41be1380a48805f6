"""MLflow: a run of the experiment `fedpvr` for each of ours, in whatever store the URI names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunStatus
from mlflow.exceptions import MlflowException

from common.errors import StateError
from common.records.run import RunRecord
from fedserver.track.tracker import Known, Point

EXPERIMENT = "fedpvr"
RUN_ID = "fedpvr.run_id"
BATCH, PARAMS_BATCH = 500, 100
"""What a store takes at once at least, by MLflow's limits."""
LONGEST_PARAM = 500
T = TypeVar("T")


class MlflowStore:
    """One run in a store. It is found again by our run's id, which it has as a tag."""

    def __init__(self, client: MlflowClient, run: str) -> None:
        self._client = client
        self._run = run

    def known(self) -> Known:
        """The history of every metric."""
        with _errors():
            names = self._client.get_run(self._run).data.metrics
            return {
                (name, each.step): each.value
                for name in names
                for each in self._client.get_metric_history(self._run, name)
            }

    def go_back(self, r: int) -> None:
        """MLflow forgets nothing; the later value of a step is the one that it shows."""

    def write(self, points: Iterable[Point]) -> None:
        """Adds values, in batches."""
        for batch in _batches(points, BATCH):
            metrics = [Metric(each.name, each.value, int(each.time * 1000), each.round) for each in batch]
            with _errors():
                self._client.log_batch(self._run, metrics=metrics)

    def close(self, *, finished: bool) -> None:
        """Says how the run ended; one that goes on later is told of again."""
        status = RunStatus.FINISHED if finished else RunStatus.KILLED
        with _errors():
            self._client.set_terminated(self._run, RunStatus.to_string(status))


def open_tracker(where: str, run_dir: Path, run: RunRecord) -> MlflowStore:
    """The MLflow run of a run; it is made, with the settings as parameters, if it is not there."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with _errors():
        client = MlflowClient(tracking_uri=where)
        found = client.get_experiment_by_name(EXPERIMENT)
        experiment = client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
        wanted = f"tags.`{RUN_ID}` = '{run.run_id}'"
        there = client.search_runs([experiment], wanted, max_results=1)
        if there:
            client.update_run(there[0].info.run_id, status=RunStatus.to_string(RunStatus.RUNNING))
            return MlflowStore(client, there[0].info.run_id)
        name = run_dir.resolve().name
        created = client.create_run(experiment, run_name=name, tags={RUN_ID: run.run_id}).info.run_id
        settings = (Param(key, str(value)[:LONGEST_PARAM]) for key, value in run.settings.items())
        for batch in _batches(settings, PARAMS_BATCH):
            client.log_batch(created, params=batch)
        return MlflowStore(client, created)


@contextmanager
def _errors() -> Iterator[None]:
    """What MLflow, its store or the way to it raises, as an error of ours."""
    try:
        yield
    except MlflowException as error:
        raise StateError(str(error)) from error


def _batches(values: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(values)
    while batch := list(islice(rest, size)):
        yield batch
