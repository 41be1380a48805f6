"""The clients of a simulation that live in one process; each is made when it is drawn for the first time."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import Tensor, nn

from common.data.names import DATASETS
from common.events import unheard
from common.models.build import build_model
from common.models.names import BUILT_IN
from common.models.spec import ModelSpec
from common.tensors.classes import FrozenTensors
from common.tensors.layout import Layout
from common.tensors.torch_views import bind
from fedclient.config import ClientConfig
from fedclient.rpc.connection import Connection
from fedclient.rpc.seat import Seat
from fedclient.run.daemon import Daemon
from fedclient.run.prepare import Build
from fedclient.site import Site
from fedlab.direct.carried import Carried
from fedlab.direct.kept_state import KeptRunState, KeptState, Together
from fedserver.config import RunConfig

STATES_BYTES = 1 << 30
"""Of states that are in memory too, in all processes of a simulation together."""


class Clients:
    """Takes the turns of any client of a run, one after the other."""

    def __init__(
        self, config: RunConfig, run_path: Path, variates: Layout, frozen: FrozenTensors, processes: int
    ) -> None:
        """`variates` are what a client's state opens with, `frozen` the tensors that stay as they are.

        So many processes have clients of this run.
        """
        self._config = config
        held = {frozen.digest: frozen.flat} if frozen.digest else {}
        self._together = Together(run_path, variates, held, STATES_BYTES // processes)
        # A model is bound to its client's tensors in every turn, and a built-in one holds nothing else.
        self._build: Build = _OneModel() if config.model in BUILT_IN else build_model
        self._clients: dict[int, tuple[Daemon, KeptRunState]] = {}

    def take_turn(self, connection: Connection, seat: Seat, carried: Carried) -> Carried:
        """A turn of the client with this seat; what it takes along may come from another process."""
        i = seat.index
        if i not in self._clients:
            kept = KeptState(self._together, i)
            self._clients[i] = _client(f"client-{i}", self._config, kept, self._build), kept.state
        client, state = self._clients[i]
        state.hold(carried.held)
        state.has_frozen = carried.has_frozen
        memory = client.take_only_turn(connection, seat, carried.memory)
        return Carried(
            memory.last_round,
            memory.taken,
            memory.keeps_state,
            tuple(state.held_rounds()),
            state.has_frozen,
        )


def _client(name: str, run: RunConfig, state: KeptState, build: Build) -> Daemon:
    """A client of whoever started the simulation, who has named model and data set and sets no limits."""
    site = Site(
        plugins=frozenset({run.model, run.dataset} - {*BUILT_IN, *DATASETS}),
        max_parameters=sys.maxsize,
        max_steps=sys.maxsize,
    )
    config = ClientConfig(server="", name=name, data_dir=run.data_dir, site=site)
    return Daemon(config, state, unheard, build=build)


class _OneModel:
    """Builds a model once, and gives every client the same one, with the values that it had at first."""

    def __init__(self) -> None:
        self._model: nn.Module | None = None
        self._first: dict[str, Tensor] = {}

    def __call__(self, spec: ModelSpec, seed: int) -> nn.Module:
        """All ask for the same."""
        if self._model is None:
            self._model = build_model(spec, seed)
            self._first = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
        bind(self._model, self._first)
        return self._model
