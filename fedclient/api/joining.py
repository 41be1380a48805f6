"""A client in a thread of the program that has its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from common.access.credentials import require_encrypted
from common.access.quiet_grpc import import_grpc_quietly
from common.data.given import Examples
from common.devices.names import CPU, OFF, require_device, require_precision
from common.events import Emit, Event, unheard
from common.processes.background import Background
from fedclient.events import RoundTrained
from fedclient.flags import Flags
from fedclient.given import Given, GivenExamples, Model, builder
from fedclient.replicas.identity import identified
from fedclient.rpc.round_stream import RunEnded
from fedclient.site import Site


def join(
    server: str,
    *,
    name: str | None = None,
    data: Examples | None = None,
    test: Examples | None = None,
    class_names: Sequence[str] | None = None,
    model: Model | None = None,
    state_dir: str | Path | None = None,
    site: str | Path | None = None,
    allow_plugins: Sequence[str] = (),
    certs: str | Path | None = None,
    token_file: str | Path | None = None,
    insecure: bool = False,
    threads: int | None = 1,
    device: str = CPU,
    autocast: str = OFF,
    give_up_s: float = 300.0,
    on_round: Callable[[RoundTrained], None] | None = None,
    on_event: Emit = unheard,
) -> Client:
    """Takes part in a run as `fedclient run` does, with examples and a model of the caller's.

    Without `data` it trains on the shard that the server assigns. A `model` that is given is the one that is
    trained, whatever the server calls it; its tensors must be those of the run. What the caller gives is
    allowed by being given, and nothing else: a server still makes this client import nothing.
    """
    flags = _flags(
        server=server,
        name=name,
        state_dir=_path(state_dir),
        site_file=_path(site),
        allow_plugin=tuple(allow_plugins),
        threads=threads,
        device=require_device(device),
        autocast=require_precision(autocast),
        give_up=give_up_s,
    )
    require_encrypted(server, _path(certs), insecure)
    emit = _listener(on_event, on_round)
    own, aside = (_examples(each, class_names, emit) for each in (data, test))
    given = Given(own, aside, None if model is None else builder(model))
    import_grpc_quietly()
    credentials = {"certs": _path(certs), "token_file": _path(token_file), "insecure": insecure}
    return Client(flags.own_name, lambda: _live(flags, credentials, given, emit))


def _examples(given: Examples | None, class_names: Sequence[str] | None, emit: Emit) -> GivenExamples | None:
    return None if given is None else GivenExamples(given, class_names, emit)


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def _flags(**given: object) -> Flags:
    usual: dict[str, object] = dict.fromkeys(
        (
            "replicas",
            "state_root",
            "dataset",
            "shard",
            "partition",
            "data",
            "test",
            "model",
            "uplink",
            "downlink",
        )
    )
    usual |= {
        "data_dir": "data",
        "max_parameters": Site.max_parameters,
        "max_steps": Site.max_steps,
        "save_every": 60.0,
        "capture": None,
    }
    return Flags(**(usual | given))  # type: ignore[arg-type]


def _listener(on_event: Emit, on_round: Callable[[RoundTrained], None] | None) -> Emit:
    def emit(event: Event) -> None:
        on_event(event)
        if on_round is not None and isinstance(event, RoundTrained):
            on_round(event)

    return emit


def _live(flags: Flags, credentials: Mapping[str, Any], given: Given, emit: Emit) -> RunEnded:
    from fedclient.run.live import live

    before = torch.get_num_threads()
    try:
        with identified(flags, dict(credentials)) as identity:
            return live(identity, emit, given)
    finally:
        torch.set_num_threads(before)


class Client:
    """A client that takes part. Leaving a `with` block ends it, unless the run has ended."""

    def __init__(self, name: str, work: Callable[[], RunEnded]) -> None:
        self.name = name
        self._background = Background(f"client {name}", work)

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._background.done

    def wait(self, timeout_s: float | None = None) -> RunEnded:
        """How the run ended; raises what ended it early. Ctrl-C while waiting cancels."""
        return self._background.wait(timeout_s)

    def cancel(self) -> None:
        """Lets it say good-bye and end; what counts is saved, and joining again goes on from there."""
        self._background.cancel()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._background.close()

    def __repr__(self) -> str:
        return f"Client({self.name!r}, {'ended' if self.done else 'taking part'})"
