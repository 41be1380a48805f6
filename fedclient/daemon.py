"""The client's life: join, then pull, train and push until the run ends, through lost connections."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from common import datasets, models
from common.errors import (
    Fault,
    FedError,
    RunError,
    StateError,
    UnavailableError,
    UnknownClientError,
    WrongRunError,
)
from common.inputs import Inputs
from common.tensors import Layout, fingerprint
from fedclient.connection import Connection, Ended, Pulled, Seat
from fedclient.gate import turn
from fedclient.own_data import OwnData
from fedclient.state import State, Variates
from fedclient.train import DivergedError, Trainer, Update
from fedclient.transport import GrpcTransport

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 5.0
PUSH_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Settings of one client; everything about training comes from the server."""

    server: str
    name: str
    data_dir: str = "data"
    own_data: OwnData | None = None
    """None: train on the shard that the server assigns."""
    threads: int = 1
    give_up_s: float = 300.0


@dataclass
class _Work:
    """What a client keeps in memory for one run."""

    seat: Seat
    trainer: Trainer
    layout: Layout
    variates: Variates
    last_round: int = 0
    """The last round this client is done with."""
    pending: tuple[Update, Layout] | None = None
    """An update that the server has not answered for yet."""


class Daemon:
    """One client process."""

    def __init__(self, config: ClientConfig, state: State, say: Callable[[str], None]) -> None:
        self._config = config
        self._state = state
        self._say = say
        self._work: _Work | None = None

    def run(self) -> Ended:
        """Takes part in the run until it ends; connects again as often as needed."""
        torch.set_num_threads(self._config.threads)
        wait = FIRST_WAIT_S
        silent_since: float | None = None
        while True:
            try:
                with Connection(GrpcTransport(self._config.server), self._config.name) as connection:
                    self.join(connection)
                    while (ended := self.take_turn(connection)) is None:
                        silent_since, wait = None, FIRST_WAIT_S
                    return ended
            except (UnavailableError, UnknownClientError) as error:
                now = time.monotonic()
                if silent_since is None:
                    silent_since = now
                    self._say(f"{error}; trying again for {self._config.give_up_s:.0f} s")
                elif now - silent_since > self._config.give_up_s:
                    raise UnavailableError(f"{error}; gave up after {now - silent_since:.0f} s") from error
            time.sleep(wait * random.uniform(0.8, 1.2))
            wait = min(wait * 1.6, LONGEST_WAIT_S)

    def join(self, connection: Connection) -> None:
        """Takes a seat, and gets ready for the run if it is a new one."""
        own = self._config.own_data
        if self._work is None:
            self._say(f"joining {self._config.server} as {self._config.name}")
        seat = connection.join((own.examples, own.class_names) if own else None)
        if self._work is None or self._work.seat.run_id != seat.run_id:
            with self._leaving_on_failure(connection, seat):
                self._work = self._prepare(seat)
            self._say(
                f"run {seat.run_id}: client {seat.index} of {seat.num_clients}, "
                f"{self._work.trainer.examples} examples, {seat.model.name}"
            )

    def _prepare(self, seat: Seat) -> _Work:
        if self._config.own_data is not None:
            dataset = self._config.own_data.load(seat.class_names, seat.model.image_shape)
        elif seat.dataset is not None:
            dataset = _shard(
                datasets.load(seat.dataset, "train", self._config.data_dir, _size(seat)), seat.indices
            )
        else:
            raise RunError("the server assigned no shard; start the client with --dataset or --data")
        if dataset.images.dtype == np.uint8:
            dataset = replace(dataset, mean=seat.mean, std=seat.std)
        if (dataset.image_shape, dataset.model_dtype) != (seat.model.image_shape, seat.model.dtype):
            raise RunError(
                f"the run is for {seat.model.dtype} examples of shape {seat.model.image_shape}, "
                f"this client has {dataset.model_dtype} {dataset.image_shape}"
            )
        model = models.build(seat.model, seat.seed)
        specs = models.tensor_specs(model)
        if fingerprint(specs) != seat.fingerprint:
            raise WrongRunError(
                f"model {seat.model.name} here has fingerprint {fingerprint(specs)[:12]}, the server's "
                f"{seat.fingerprint[:12]}; install the same code on both"
            )
        trainer = Trainer(model, Inputs(dataset), seat.seed, seat.index)
        return _Work(seat, trainer, Layout(specs), self._state.of_run(seat.run_id))

    def take_turn(self, connection: Connection) -> Ended | None:
        """Pulls a round, trains and pushes; returns how the run ended once it has."""
        work = self._work
        assert work is not None, "join comes first"
        if work.pending is None:
            pulled = connection.pull(
                work.seat.run_id, work.last_round, work.variates.held_rounds(), work.layout
            )
            if isinstance(pulled, Ended):
                return pulled
            with self._leaving_on_failure(connection, work.seat):
                self._train(connection, work, pulled)
        if work.pending is not None:
            self._push(connection, work, *work.pending)
        return None

    @contextmanager
    def _leaving_on_failure(self, connection: Connection, seat: Seat) -> Iterator[None]:
        """Tells the server before the client ends for good, so that nobody waits for it."""
        try:
            yield
        except (UnavailableError, UnknownClientError):
            raise
        except Exception as error:
            known = error if isinstance(error, FedError) else RunError(f"training failed: {error!r}")
            connection.decline(seat, 0, str(known), leaving=True)
            raise known from error

    def _train(self, connection: Connection, work: _Work, pulled: Pulled) -> None:
        task = pulled.task
        layout = task.algorithm.variates(task.layout)
        counted = pulled.counted_round if layout.specs else 0
        if pulled.lost_variate is not None:
            self._say(f"the variate of round {counted} came back from the server")
            work.variates.write(counted, layout, pulled.lost_variate)
        elif counted not in (0, *work.variates.held_rounds()):
            raise StateError(f"the server counts the variate of round {counted}, which is not here")
        work.variates.settle(counted)
        variate = work.variates.read(counted, layout)
        started = time.monotonic()
        try:
            with turn(work.seat.index, self._config.threads):
                update = work.trainer.train(task, variate)
        except DivergedError as error:
            self._say(f"round {task.round}: {error}; no update this time")
            connection.decline(work.seat, task.round, str(error))
            work.last_round = task.round
            return
        if layout.specs:
            work.variates.write(task.round, layout, update.variate)
        work.pending = (update, task.layout)
        seconds = time.monotonic() - started
        self._say(f"round {task.round}: {update.steps} steps, loss {update.loss:.4f}, {seconds:.1f} s")

    def _push(self, connection: Connection, work: _Work, update: Update, layout: Layout) -> None:
        for _ in range(PUSH_TRIES):
            reply = connection.push(work.seat, update, layout, work.trainer.examples)
            if reply.fault is not Fault.BAD_CHECKSUM:
                break
            self._say(f"round {update.round}: {reply.message}")
        if reply.outcome == "REJECTED":
            self._say(f"round {update.round}: update rejected: {reply.message}")
            connection.decline(work.seat, update.round, reply.message)
        elif reply.outcome == "LATE":
            self._say(f"round {update.round}: too late, the round had closed")
        work.pending = None
        work.last_round = update.round


def _shard(train: datasets.Dataset, indices: list[int]) -> datasets.Dataset:
    if not indices or max(indices) >= len(train.labels):
        raise RunError(
            f"the server assigned {len(indices)} examples up to number {max(indices, default=0)}, "
            f"but {train.name} has {len(train.labels)} here; both need the same data"
        )
    return train.subset(np.array(indices, np.int64))


def _size(seat: Seat) -> int | None:
    """The size that the run brought its images to, where there is one size."""
    shape = seat.model.image_shape
    return shape[1] if len(shape) == 3 and shape[1] == shape[2] else None
