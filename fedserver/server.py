"""The server process: listens, runs one federation, ends by itself."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection

from common.devices.names import CPU
from common.errors import ConfigError, UnavailableError
from common.events import Emit, of_run, to_all
from common.wire.calls import SERVICE
from common.wire.capture import CaptureWriter
from common.wire.limits import MAX_REQUEST_BYTES
from common.wire.statuses import STOPPING
from fedserver import resources
from fedserver.access.admission import Admission
from fedserver.access.authenticate import Refusals
from fedserver.access.handshake_log import HandshakeLog
from fedserver.access.renewal import Renewal
from fedserver.access.settings import AccessSettings
from fedserver.config import RunConfig
from fedserver.events.run import Listening, RunStarted, RunStopped
from fedserver.federation import Federation, assemble, continued
from fedserver.live.event_log import EventLog
from fedserver.live.live_file import LiveFile
from fedserver.live.snapshot import Constants, LiveNews, Snapshots
from fedserver.results.summary import tell_of_the_end
from fedserver.rpc import health
from fedserver.rpc.endpoint import Endpoint
from fedserver.run.board import Phase
from fedserver.store.run_dir import RunDir
from fedserver.worker.process import worker_for

FAREWELL_S = 10.0
"""How long a finished server waits for clients that have not heard of the end."""
RETURN_S = 60.0
"""The same for a server that was started again after the end: its clients may be starting too."""
SETTLE_S = 2.0
"""How long gRPC gets to end its own tasks."""
WINDOW_BYTES = 1 << 16
"""HTTP/2 receive window of a stream: what anybody can make the server hold before it asks for more."""
MAX_CONNECTIONS = 1024
"""In addition to two for every client, one of which may be a broken one that is not noticed yet."""
IDLE_MS = 60_000
"""How long a connection may be without a call. A client that trains for longer connects again by itself."""

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.server_handshake_timeout_ms", 20_000),
    # Without this a second server would share the port in silence.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    # A crowd that joins at once must not be turned away.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
    # Clients ping while they wait for a round, to notice a dead server.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    # On a slow link a ping waits behind a megabyte of data, so it gets more than the usual minute.
    ("grpc.http2.ping_timeout_ms", 180_000),
]


async def serve(
    config: RunConfig,
    listen: str,
    run_path: Path,
    emit: Emit,
    *,
    access: AccessSettings,
    capture_path: Path | None = None,
    resume: bool = True,
    canary: bool = False,
    device: str = CPU,
) -> int:
    """Serves one run; returns 0 when it is finished, or the number of the signal that ended it early."""
    stopped = _signal_future()
    resources.allow_files(config.num_clients)
    resources.keep_pages()
    access.require_safe(listen)
    with RunDir(run_path, resume=resume) as run_dir, ExitStack() as stack:
        emit, news = _watched(run_path, emit, stack)
        authenticator, tls, refusals = access.authenticator(emit), access.tls(), Refusals(emit)
        config, run_id = continued(config, run_dir)
        capture = _capture(capture_path, emit, stack)
        worker = stack.enter_context(closing(worker_for(config, device)))
        if tls is not None:
            stack.enter_context(HandshakeLog(refusals))
        federation = assemble(config, run_id, run_dir, worker, emit, capture, canary=canary)
        endpoint = Endpoint(federation.service, authenticator, refusals)
        healthy = health.Health(federation.members.joinable)
        renewal = Renewal(access.tls, access.tls_files, emit) if tls is not None else None
        server, port = _create(endpoint, healthy, listen, renewal, config.num_clients)
        federation.traffic.watch(port)
        await server.start()
        address = f"{listen.rpartition(':')[0]}:{port}"
        _tell_of_the_start(config, run_id, run_path, address, emit)
        constants = Constants(run_id, config, address, access.tls_files[0] if tls is not None else None)
        async with LiveFile(run_path, Snapshots(constants, federation, news)) as live:
            try:
                number = await _run_until(stopped, federation, RETURN_S if run_dir.finished() else FAREWELL_S)
            finally:
                federation.traffic.sample()
                await _close(server, healthy, live)
                run_dir.write_traffic(federation.traffic.whole())
            live.outcome = f"stopped by {signal.Signals(number).name}" if number else "finished"
        _tell_how_it_ended(number, federation, run_path, of_run(emit, run_id))
    return number


def _watched(run_path: Path, emit: Emit, stack: ExitStack) -> tuple[Emit, LiveNews]:
    """The same listener, and those for people who watch the run directory."""
    news = LiveNews()
    return to_all(emit, stack.enter_context(EventLog(run_path, emit)), news), news


def _capture(path: Path | None, emit: Emit, stack: ExitStack) -> CaptureWriter | None:
    if path is None:
        return None
    capture = CaptureWriter(path, emit)
    stack.callback(capture.close)
    return capture


def _tell_how_it_ended(number: int, federation: Federation, run_path: Path, emit: Emit) -> None:
    if number:
        emit(RunStopped(signal=signal.Signals(number).name, run_dir=str(run_path)))
    else:
        tell_of_the_end(federation.board, federation.members, run_path, emit)


def _tell_of_the_start(config: RunConfig, run_id: str, run_path: Path, address: str, emit: Emit) -> None:
    emit(Listening(run=run_id, address=address))
    emit(
        RunStarted(
            run=run_id,
            algorithm=config.algorithm,
            model=config.model,
            dataset=config.dataset,
            run_dir=str(run_path),
        )
    )


async def _run_until(stopped: asyncio.Future[int], federation: Federation, patience_s: float) -> int:
    """Runs the federation to its end (0) or to a signal (its number); raises what ended it early."""
    running: asyncio.Future[None] = asyncio.create_task(federation.rounds.run())
    try:
        first: set[asyncio.Future[Any]] = {running, stopped}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            return stopped.result()
        if federation.board.phase is Phase.FINISHED:
            await _farewell(federation, patience_s)
        await running
        return 0
    finally:
        federation.members.turn_away(UnavailableError(STOPPING))
        await federation.board.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _signal_future() -> asyncio.Future[int]:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    return stopped


def _create(
    endpoint: Endpoint, healthy: health.Health, listen: str, renewal: Renewal | None, num_clients: int
) -> tuple[grpc.aio.Server, int]:
    crowd = [
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS + 2 * num_clients),
        ("grpc.max_connection_idle_ms", IDLE_MS),
    ]
    server = grpc.aio.server(options=[*_OPTIONS, *crowd], interceptors=[Admission(endpoint.admit)])
    server.add_generic_rpc_handlers((endpoint.handler(),))
    healthy.add_to(server)
    reflection.enable_server_reflection((SERVICE, health.NAME, reflection.SERVICE_NAME), server)
    try:
        port = (
            server.add_insecure_port(listen)
            if renewal is None
            else server.add_secure_port(listen, renewal.credentials())
        )
    except RuntimeError as error:
        raise ConfigError(
            f"--listen {listen}: cannot listen there (is the port in use?); choose another, or port 0 for any"
        ) from error
    return server, port


async def _close(server: grpc.aio.Server, healthy: health.Health, live: LiveFile) -> None:
    """gRPC's own tasks end shortly after its server; those that are cancelled instead print a traceback."""
    await healthy.stop()
    await server.stop(grace=1.0)
    others = asyncio.all_tasks() - {asyncio.current_task(), live.task}
    if others:
        await asyncio.wait(others, timeout=SETTLE_S)


async def _farewell(federation: Federation, patience_s: float) -> None:
    """Waits until every client has been told of the end, but not for long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await federation.board.all_told(federation.members.here)
