"""Prepares a run: model and shards from the worker, layout, encodings and stores, and where it stands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from common.algorithms import ALGORITHMS, svr_names
from common.errors import ConfigError
from common.events import Emit
from common.server_step.aggregate import ServerState
from common.server_step.updates import UpdateReader, computable
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec
from common.wire.encoding import downward
from common.wire.limits import require_announceable, require_assignable
from fedserver.config import RunConfig
from fedserver.events import RunResumed
from fedserver.run.run import Run
from fedserver.store.checkpoints import Checkpoints
from fedserver.store.run_dir import RunDir
from fedserver.store.spool import Spool
from fedserver.store.variates import Variates
from fedserver.worker.messages import Prepared
from fedserver.worker.process import TorchWorker


@dataclass(frozen=True)
class Standing:
    """Where a run stands between two rounds."""

    round: int
    """The last closed round."""
    flat: Flat
    """x, the buffers and c."""
    server: ServerState | None
    """h, for an algorithm that keeps one."""
    shared: bool
    """Whether c follows from what x did in the last round."""


async def prepare(config: RunConfig, run_id: str, run_dir: RunDir, worker: TorchWorker) -> Run:
    """Everything that clients need before they can join."""
    prepared = await worker.prepare(config)
    layout = _layout(config, prepared)
    derived, codecs, algorithm = config.variates == "derived", config.codecs, ALGORITHMS[config.algorithm]
    if derived and not computable(layout):
        raise ConfigError(
            "--variates derived needs float32 or float64 in S_svr, the model has others; "
            "use --variates explicit"
        )
    update_reader = UpdateReader(layout, algorithm, codecs.up, codecs.control, derived)
    down = downward(layout, codecs)
    require_announceable(down, update_reader.encoding, algorithm.variates(layout))
    await asyncio.to_thread(require_assignable, prepared.shards, prepared.class_names)
    folder = run_dir.path
    archive = folder / "checkpoints" / "ledger"
    return Run(
        id=run_id,
        config=config,
        prepared=prepared,
        down=down,
        update_reader=update_reader,
        run_dir=run_dir,
        checkpoints=Checkpoints(folder / "checkpoints", layout),
        variates=Variates(folder / "ledger", archive, layout, algorithm, config.prox_weight),
        spool=Spool(folder / "spool", update_reader.encoding),
    )


def _layout(config: RunConfig, prepared: Prepared) -> Layout:
    """The model's tensors, then c."""
    parameters = [spec.name for spec in prepared.specs if spec.purpose is Purpose.MODEL]
    svr = svr_names(config.algorithm, config.svr, parameters, prepared.classifier)
    control = [
        TensorSpec(spec.name, spec.dtype, spec.shape, Purpose.CONTROL)
        for spec in prepared.specs
        if spec.name in svr and spec.purpose is Purpose.MODEL
    ]
    return Layout([*prepared.specs, *control])


def start(run: Run) -> Standing:
    """Before the first round: x^0, and c at zero, which any client knows."""
    flat = run.layout.allocate()
    run.model(flat)[:] = run.prepared.x0
    return Standing(0, flat, server_state(run), shared=True)


def server_state(run: Run) -> ServerState | None:
    """h at zero, for an algorithm that keeps one."""
    if not run.algorithm.keeps_h:
        return None
    return ServerState(run.layout, run.algorithm, run.config.prox_weight)


def require_same_model(run: Run, fingerprint: str) -> None:
    """Raises if the run that goes on has another model."""
    if fingerprint != run.fingerprint:
        raise ConfigError(
            f"--run-dir {run.run_dir.path} holds a run of another model (fingerprint "
            f"{fingerprint[:12]}, now {run.fingerprint[:12]}); choose a new directory"
        )


def resume(run: Run, emit: Emit) -> Standing:
    """The state after the newest checkpoint; what is newer is removed."""
    variates = run.variates
    found = run.checkpoints.newest(lambda checkpoint: variates.require_whole(checkpoint.counted), emit)
    if found is None:
        variates.restore({}, {})
        standing = start(run)
    else:
        variates.restore(found.counted, found.norms)
        server = server_state(run)
        if server is not None:
            server.h = dict(found.h)
        standing = Standing(found.round, found.flat, server, found.shared)
        run.checkpoints.drop_after(found.round)
        run.run_dir.write_state(run.layout, found.flat)
    emit(RunResumed(round=standing.round, rounds=run.config.rounds))
    return standing
