"""Targets: the calls of a server, from clients that may say anything."""

from __future__ import annotations

import asyncio
import atexit
import shutil
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from random import Random
from typing import Any

import numpy as np

from common.algorithms import ALGORITHMS
from common.errors import FedError, RunError, WireError
from common.events import unheard
from common.records.run import RunRecord
from common.server_step.step import CSource
from common.server_step.updates import UpdateReader
from common.wire.bundles import bundles
from common.wire.calls import CALLS, Call
from common.wire.chunks import parsed
from common.wire.encoding import downward
from fedpvr.v1 import federation_pb2 as pb
from fedserver.access.authenticate import Caller
from fedserver.config import RunConfig
from fedserver.federation import Federation
from fedserver.members.members import Members
from fedserver.members.seats import Member
from fedserver.rpc.service import Service
from fedserver.run.board import Board
from fedserver.run.fold import Fold
from fedserver.run.round import Round
from fedserver.run.run import Run
from fedserver.store.history import History
from fedserver.store.spool import Spool
from fedserver.store.variates import Variates
from fedserver.traffic.traffic import Traffic
from tests.fuzz import known, mutators
from tests.fuzz.frames import with_checksum
from tests.fuzz.mutators import script, scripted
from tests.fuzz.target import Target

_PEER = Caller("ipv4:127.0.0.1:1")


class _AtOnce(ThreadPoolExecutor):
    """Does the work when it is handed in, so that what happens follows from the input alone."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Works."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **named))
        except Exception as error:
            future.set_exception(error)
        return future


LOOP = asyncio.new_event_loop()
LOOP.set_default_executor(_AtOnce())
atexit.register(LOOP.close)


def _parts(config: RunConfig) -> Federation:
    """A federation that nobody drives."""
    members, board = Members(config.num_clients), Board()
    traffic = Traffic(lambda name: name in members.by_name)
    service = Service(config, known.RUN_ID, members, board, traffic, unheard)
    unused: Any = None
    return Federation(members, board, traffic, service, unused)


def _run(config: RunConfig, variates: Any, spool: Any) -> Run:
    """A run with what calls make use of."""
    unused: Any = None
    run_dir: Any = _NoDisk()
    down, up = downward(known.LAYOUT, config.codecs), known.up(config)
    return Run(known.RUN_ID, config, known.PREPARED, down, up, run_dir, unused, variates, spool)


class _NoDisk:
    """In place of a run directory."""

    def __init__(self) -> None:
        self.history = History()

    def write_config(self, record: RunRecord) -> None:
        """Nobody reads it."""


async def opened(config: RunConfig) -> Federation:
    """A run whose two clients are seated, with round 1 open."""
    folder = known.folder() / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    federation = _parts(config)
    variates = Variates(folder / "ledger", folder / "archive", known.LAYOUT, ALGORITHMS["fedpvr"], 0.0)
    run = _run(config, variates, Spool(folder / "spool", known.up(config), known.LAYOUT))
    federation.members.restore(
        [Member("client-0", 0, 2, known.PREPARED.shards[0]), Member(known.CLIENT, 1, 3, None)],
        None,
    )
    federation.board.open(run)
    federation.members.open(known.PREPARED.shards, known.PREPARED.class_names)
    broadcast = known.values()
    raw = run.down.encode_in_place(broadcast, np.random.default_rng(0), None, None)
    if not run.down.plain:  # A client that lost its variate may ask for it.
        variates.stage(1, 9, broadcast, broadcast)
        variates.count(1, 9)
    messages = list(bundles(run.down.encoded, raw))
    federation.traffic.open_round(1)
    reader = UpdateReader(known.rules(config), known.LAYOUT, broadcast)
    await federation.board.open_round(Round(reader, messages, [0, 1], CSource.FROM_MOVE))
    return federation


def calls(data: bytes) -> None:
    """Calls one after the other: a byte for the settings, then for each call its number and its messages."""
    config = known.CONFIGS[data[0] % len(known.CONFIGS)] if data else known.CONFIGS[0]
    LOOP.run_until_complete(_answer_all(config, [part for part in script(data[1:]) if part][:20]))


async def _answer_all(config: RunConfig, parts: list[bytes]) -> None:
    federation = await opened(config)
    for part in parts:
        with suppress(FedError):
            await _answer(federation, called(part), part[1:])
    current, run = federation.board.round, federation.board.require_run()
    assert current is not None
    updates = current.updates()
    fold = Fold(run, current, h=None)
    for i, update in sorted(updates.items()):
        fold.take(i, update)
    if updates:
        with suppress(RunError):  # Sums of huge numbers end a run.
            fold.close(known.values(), None, unheard)


def called(part: bytes) -> Call:
    """The call that the first byte of a part of the input is for."""
    return list(CALLS.values())[part[0] % len(CALLS)]


def _tag(name: str) -> bytes:
    return bytes([list(CALLS).index(name)])


async def _answer(federation: Federation, call: Call, data: bytes) -> None:
    method = getattr(federation.service, call.method)
    if call.streams_requests:
        async with aclosing(_stream([with_checksum(frame) for frame in script(data)])) as frames:
            parsed(call.reply, await method(frames, _PEER))
    elif call.streams_replies:
        await _end_if_waiting(federation, data)
        async with aclosing(method(data, _PEER)) as frames:
            async for frame in frames:
                parsed(call.reply, frame)
                if call.name == "WatchStatus":  # It goes on for as long as the run.
                    break
    else:
        parsed(call.reply, await method(data, _PEER))


async def _stream(frames: list[bytes]) -> AsyncGenerator[bytes, None]:
    for frame in frames:
        yield frame


async def _end_if_waiting(federation: Federation, data: bytes) -> None:
    """A client that has answered waits for the next round; here the run ends instead."""
    with suppress(WireError):
        name = parsed(pb.PullRoundRequest, data).client
        member = federation.members.by_name.get(name)
        if member is not None and not federation.board.waits_for(member.index):
            await federation.board.end("over")


def call_seeds() -> list[bytes]:
    """Conversations under all settings: whole, declined, cut and gone on with."""
    asked = pb.PullRoundRequest(run_id=known.RUN_ID, client=known.CLIENT, held_rounds=[1])
    asked.resume.round, asked.resume.position.tensor = 1, 1
    together = pb.PullRoundRequest(run_id=known.RUN_ID, client=known.CLIENT, takes_bundles=True)
    join = pb.JoinRequest(protocol_version=1, client=known.CLIENT, own_data=pb.OwnData(examples=3))
    progress = pb.UpdateProgressRequest(
        run_id=known.RUN_ID, client=known.CLIENT, round=1, update_id="1-0a1b2c3d"
    )
    no = [
        pb.UpdateHeader(run_id=known.RUN_ID, client=known.CLIENT, round=1, declined="no", leaving=leaving)
        for leaving in (False, True)
    ]
    small = [
        _tag("Join") + join.SerializeToString(),
        _tag("PullRound") + asked.SerializeToString(),
        _tag("PullRound") + together.SerializeToString(),
        _tag("UpdateProgress") + progress.SerializeToString(),
        _tag("Status"),
        _tag("WatchStatus") + pb.WatchStatusRequest(most_replies=1).SerializeToString(),
        _tag("Probe")
        + pb.ProbeRequest(
            protocol_version=1, client=known.CLIENT, padding_bytes=9, padding=b"up"
        ).SerializeToString(),
        _tag("Evict") + pb.EvictRequest(client="client-0").SerializeToString(),
        _tag("Renew") + pb.RenewRequest(run_id=known.RUN_ID, client=known.CLIENT).SerializeToString(),
    ]
    found = []
    for k, config in enumerate(known.CONFIGS):
        first, *rest = known.update(config)
        going_on = pb.UpdateFrame.FromString(first)
        going_on.header.resume_from.offset = 40
        whole = _tag("PushUpdate") + scripted([first, *rest])
        cut = _tag("PushUpdate") + scripted([first, *rest[:1]])
        on = _tag("PushUpdate") + scripted([going_on.SerializeToString(), *rest[1:]])
        declined = [_tag("PushUpdate") + scripted([pb.UpdateFrame(header=h).SerializeToString()]) for h in no]
        for script_of_calls in (small, [whole, whole], [cut, small[3], on], [*declined, small[1]]):
            found.append(bytes([k]) + scripted(script_of_calls))
    return found


def seat(data: bytes) -> None:
    """The first client of a run of one, before anybody has a seat."""
    LOOP.run_until_complete(_seat(data))


async def _seat(data: bytes) -> None:
    federation = _parts(_ONE)
    federation.board.open(_run(_ONE, None, None))
    federation.members.open(known.PREPARED.shards, known.PREPARED.class_names)
    parsed(pb.JoinReply, await federation.service.join(data, _PEER))


def seat_seeds() -> list[bytes]:
    """With data and without."""
    own = pb.OwnData(examples=3, class_names=["cat", "1"])
    return [
        pb.JoinRequest(protocol_version=1, client="a", own_data=own).SerializeToString(),
        pb.JoinRequest(protocol_version=1, client="a").SerializeToString(),
    ]


_ONE = RunConfig(num_clients=1, local_steps=1)

_push = mutators.pieces(script, scripted, lambda: mutators.message)
_one_call = mutators.pieces(lambda data: [data[:1], data[1:]], b"".join, lambda: _push_or_message)
_all_calls = mutators.pieces(script, scripted, lambda: _one_call)


def _push_or_message(data: bytes, random: Random, plain: mutators.Plain) -> bytes:
    """A call has one message or, in a push, several."""
    inner = mutators.message if random.random() < 0.4 else _push
    return inner(data, random, plain)


TARGETS = {
    "calls": Target(
        calls, call_seeds, mutators.pieces(lambda data: [data[:1], data[1:]], b"".join, lambda: _all_calls)
    ),
    "seat": Target(seat, seat_seeds, mutators.message),
}
