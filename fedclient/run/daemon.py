"""The client's life: join, then pull, train and push until the run ends, through lost connections."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from common.access.credentials import Access
from common.data import datasets
from common.data.batches import Batches
from common.errors import (
    AccessError,
    DiskError,
    FedError,
    RunError,
    StateError,
    SupersededError,
    UnavailableError,
    UnknownClientError,
    WrongRunError,
)
from common.models.build import build_model, tensor_specs
from common.server_step.updates import reduced
from common.tensors.layout import Flat, Layout, fingerprint
from common.wire.capture import CaptureWriter
from common.wire.chunks import START
from fedclient.own_data import OwnData
from fedclient.rpc.connection import ON_THE_WAY, Connection, Ended, Pulled, Resend, Seat
from fedclient.rpc.heartbeat import heartbeat
from fedclient.run.memory import Seen, Work, derive_c, held_rounds
from fedclient.store.state import State
from fedclient.store.stored_update import StoredUpdate
from fedclient.training.core_gate import turn
from fedclient.training.train import DivergedError, Trainer
from fedclient.transport.captured import CapturedTransport
from fedclient.transport.grpc_transport import GrpcTransport, Transport
from fedclient.transport.paced import WINDOW_BYTES, Pace, PacedTransport

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
    device: str = "cpu"
    """Where the model is trained: cpu or cuda."""
    give_up_s: float = 300.0
    uplink: float | None = None
    """Bits per second that this client sends at the most; None: as fast as it goes."""
    downlink: float | None = None
    """Bits per second that this client receives at the most."""
    access: Access = field(default_factory=Access)
    """What it shows to the server."""


class Daemon:
    """One client process."""

    def __init__(
        self,
        config: ClientConfig,
        state: State,
        say: Callable[[str], None],
        capture: CaptureWriter | None = None,
    ) -> None:
        self._config = config
        self._state = state
        self._say = say
        self._capture = capture
        self._calls = itertools.count()
        self._up = Pace(config.uplink) if config.uplink is not None else None
        self._down = Pace(config.downlink) if config.downlink is not None else None
        self._work: Work | None = None

    def run(self) -> Ended:
        """Takes part in the run until it ends; connects again as often as needed."""
        torch.set_num_threads(self._config.threads)
        wait = FIRST_WAIT_S
        silent_since: float | None = None
        reached: object = None
        while True:
            try:
                with Connection(self._transport(), self._config.name) as connection:
                    seat = self.join(connection)
                    with heartbeat(connection, seat):
                        while (ended := self.take_turn(connection)) is None:
                            silent_since, wait = None, FIRST_WAIT_S
                        return ended
            except (UnavailableError, UnknownClientError) as error:
                now = time.monotonic()
                if reached != (reached := self._reached()):
                    silent_since, wait = None, FIRST_WAIT_S
                if silent_since is None:
                    silent_since = now
                    self._say(f"{error}; trying again for {self._config.give_up_s:.0f} s")
                elif now - silent_since > self._config.give_up_s:
                    raise UnavailableError(f"{error}; gave up after {now - silent_since:.0f} s") from error
            time.sleep(wait * random.uniform(0.8, 1.2))
            wait = min(wait * 1.6, LONGEST_WAIT_S)

    def _reached(self) -> object:
        """How far this client has come; a transfer that gets on, however often it breaks, is no silence."""
        work = self._work
        if work is None:
            return None
        return work.seat.run_id, work.last_round, work.download.position, work.arrived, work.pending is None

    def _transport(self) -> Transport:
        window = WINDOW_BYTES if self._down is not None else None
        transport: Transport = GrpcTransport(self._config.server, self._config.access.read(), window)
        if self._up is not None or self._down is not None:
            transport = PacedTransport(transport, self._up, self._down)
        if self._capture is not None:
            transport = CapturedTransport(transport, self._capture, self._calls)
        return transport

    def join(self, connection: Connection) -> Seat:
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
        return seat

    def _prepare(self, seat: Seat) -> Work:
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
        model = build_model(seat.model, seat.seed)
        specs = tensor_specs(model)
        if fingerprint(specs) != seat.fingerprint:
            raise WrongRunError(
                f"model {seat.model.name} here has fingerprint {fingerprint(specs)[:12]}, the server's "
                f"{seat.fingerprint[:12]}; install the same code on both"
            )
        trainer = Trainer(model, Batches(dataset, self._config.device), seat.seed, seat.index)
        kept = self._state.of_run(seat.run_id, self._config.name, seat.fingerprint)
        work = Work(seat, trainer, Layout(specs), kept)
        work.pending = self._left_over(work)
        work.broke_off = work.pending is not None
        return work

    def _left_over(self, work: Work) -> StoredUpdate | None:
        """The update that an earlier process of this client was about to hand in."""
        data = work.kept.kept_update()
        if data is None:
            return None
        try:
            update = StoredUpdate.restored(data, work.sender(self._config.name))
        except StateError as error:
            self._say(f"the update in the state directory {error}; training its round again")
            work.kept.drop_update()
            return None
        self._say(f"round {update.round}: handing in the update that an earlier process left")
        return update

    def take_turn(self, connection: Connection) -> Ended | None:
        """Pulls a round, trains and pushes; returns how the run ended once it has."""
        work = self._work
        assert work is not None, "join comes first"
        if work.pending is None:
            with self._leaving_on_failure(connection, work.seat):
                pulled = connection.pull(
                    work.seat.run_id, work.last_round, held_rounds(work), work.layout, work.download
                )
                if isinstance(pulled, Ended):
                    work.kept.drop_update()
                    return pulled
                if isinstance(pulled, Resend):
                    self._go_back(work, pulled.round)
                else:
                    self._train(connection, work, pulled)
        if work.pending is not None:
            self._push(connection, work, work.pending)
        return None

    @contextmanager
    def _leaving_on_failure(self, connection: Connection, seat: Seat) -> Iterator[None]:
        """Tells the server before the client ends for good, so that nobody waits for it."""
        try:
            yield
        except (UnavailableError, UnknownClientError, AccessError, DiskError):
            # The client may come back and go on.
            raise
        except Exception as error:
            known = error if isinstance(error, FedError) else RunError(f"training failed: {error!r}")
            connection.decline(seat, 0, str(known), leaving=True)
            raise known from error

    def _train(self, connection: Connection, work: Work, pulled: Pulled) -> None:
        task = pulled.task
        work.last = None
        if pulled.derives_c:
            derive_c(work, task)
        kept = self._settled(work, pulled)
        started = time.monotonic()
        try:
            with turn(work.seat.index, self._config.threads):
                update = work.trainer.train(task, kept)
        except DivergedError as error:
            self._say(f"round {task.round}: {error}; no update this time")
            connection.decline(work.seat, task.round, str(error))
            work.last_round = task.round
            return
        if work.keeps:
            work.kept.write(task.round, task.kept, update.kept)
        copies = [array.copy() for array in reduced(task.layout, task.down)]
        work.seen = Seen(task.round, copies, update.step_sum)
        work.pending = update.stored_update(task.up)
        work.kept.keep_update(work.pending.stored(work.sender(self._config.name)))
        seconds = time.monotonic() - started
        self._say(f"round {task.round}: {update.steps} steps, loss {update.loss:.4f}, {seconds:.1f} s")

    def _go_back(self, work: Work, r: int) -> None:
        """Hands an update in again that the server has lost, or has the round again without it."""
        if work.last is not None and work.last.round == r:
            self._say(f"round {r}: the server was restarted; handing the update in again")
            work.pending = work.last
        else:
            self._say(f"round {r}: the server was restarted; training it again")
            work.last_round = 0

    def _settled(self, work: Work, pulled: Pulled) -> Flat:
        """What this client keeps, as of the round that the server says counts."""
        task, counted = pulled.task, pulled.counted_round
        work.keeps = bool(task.kept.specs)
        if not work.keeps:
            return task.kept.allocate()
        held = work.kept.held_rounds()
        if pulled.lost_variate is not None and counted not in held:
            self._say(f"the variate of round {counted} came back from the server")
            kept = task.kept.allocate()
            kept[: len(pulled.lost_variate)] = pulled.lost_variate  # Residuals, if any, start again at zero.
            work.kept.write(counted, task.kept, kept)
        elif counted not in (0, *held):
            if task.variates.specs:
                raise StateError(f"the server counts the variate of round {counted}, which is not here")
            self._say(f"what coding left out up to round {counted} is lost; going on without it")
            work.kept.write(counted, task.kept, task.kept.allocate())
        work.kept.settle(counted)
        return work.kept.read(counted, task.kept)

    def _push(self, connection: Connection, work: Work, update: StoredUpdate) -> None:
        start = work.arrived = connection.progress(work.seat, update) if work.broke_off else START
        if start != START:
            specs = update.encoding.encoded.specs
            done = sum(spec.num_bytes for spec in specs[: start[0]]) + start[1]
            total = sum(spec.num_bytes for spec in specs)
            self._say(f"round {update.round}: going on with the upload after {done:,} of {total:,} bytes")
        work.broke_off = True
        for _ in range(PUSH_TRIES):
            try:
                reply = connection.push(work.sender(self._config.name), update, start)
            except SupersededError as error:
                raise UnavailableError(f"the upload was taken over: {error}") from error
            if reply.fault not in ON_THE_WAY:
                break
            self._say(f"round {update.round}: {reply.message}")
            start = START
        else:
            raise UnavailableError(f"round {update.round}: the update does not arrive whole")
        if reply.outcome == "REJECTED":
            self._say(f"round {update.round}: update rejected: {reply.message}")
            connection.decline(work.seat, update.round, reply.message)
        elif reply.outcome == "LATE":
            self._say(f"round {update.round}: the round has closed; this update changes nothing")
        work.counts = reply.outcome in ("ACCEPTED", "DUPLICATE")
        if not work.counts:
            work.kept.drop_update()
        work.last = work.pending if work.counts else None
        work.pending, work.broke_off = None, False
        if work.seen is not None:
            # A restarted client no longer has the x of this round, so it does not name it to the server.
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
