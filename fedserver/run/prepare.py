"""Prepares a run: model and shards from the worker, layout, encodings and stores, and where it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from common.algorithms import ignores_momentum, svr_names
from common.errors import ConfigError, StateError
from common.events import Emit
from common.server_step.aggregate import ServerState
from common.server_step.rules import Rules
from common.server_step.step import CSource, reweighted
from common.server_step.updates import stores_plain_floats
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec
from common.wire.encoding import downward
from common.wire.limits import require_announceable, require_assignable
from fedserver.config import RunConfig
from fedserver.events.run import MomentumIgnored, RunResumed
from fedserver.run.run import Run, rules_of
from fedserver.store.checkpoints import Checkpoint, Checkpoints
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
    h: ServerState | None
    """The server's own state; None before the first round."""
    c_source: CSource
    total_weight: float | None
    """What all clients together weighed in the last round; None: what they weigh now."""
    evicted: frozenset[int] = frozenset()
    """Members that are not in c and h any more, by index."""
    strikes: Mapping[int, int] = field(default_factory=dict)
    """Rounds in which updates were far too large and that are not made up for yet, by client index."""

    def under(self, rules: Rules, layout: Layout) -> Standing:
        """The same before a round in which all clients together weigh something else, perhaps."""
        before = rules.total_weight if self.total_weight is None else self.total_weight
        return replace(self, flat=reweighted(layout, self.flat, before, rules.total_weight))


async def prepare(config: RunConfig, run_id: str, run_dir: RunDir, worker: TorchWorker) -> tuple[Run, Flat]:
    """Everything that clients need before they can join, and x^0, which nobody needs after the start."""
    prepared = await worker.prepare(config)
    layout = _layout(config, prepared)
    rules = rules_of(config, 1, prepared.augment, 0)
    if rules.derived and not stores_plain_floats(layout):
        raise ConfigError(
            "--variates derived needs float32 or float64 in S_svr, the model has others; "
            "use --variates explicit"
        )
    method, down, up = rules.method, downward(layout, config.codecs), rules.update_encoding(layout)
    require_announceable(down, up, method.variates(layout))
    await asyncio.to_thread(require_assignable, prepared.shards, prepared.class_names)
    folder = run_dir.path
    archive = folder / "checkpoints" / "ledger"
    run = Run(
        id=run_id,
        config=config,
        prepared=replace(prepared, x0=prepared.x0[:0].copy()),
        down=down,
        up=up,
        run_dir=run_dir,
        checkpoints=Checkpoints(folder / "checkpoints", layout),
        variates=Variates(folder / "ledger", archive, layout, method, config.prox_weight),
        spool=Spool(folder / "spool", up, layout, in_files=bool(config.cka)),
    )
    return run, prepared.x0


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


def tell_of_idle_settings(run: Run, emit: Emit) -> None:
    """Says which settings act on nothing in this run."""
    momentum, layout = run.config.momentum, run.layout
    svr, parameters = (
        [layout.specs[k].name for k in layout.indices(purpose)]
        for purpose in (Purpose.CONTROL, Purpose.MODEL)
    )
    if ignores_momentum(momentum, svr, parameters):
        emit(MomentumIgnored(momentum=momentum))


def start(run: Run, x0: Flat) -> Standing:
    """Before the first round: x^0, and c at zero, which any client knows."""
    flat = run.layout.allocate()
    run.model(flat)[:] = x0
    return Standing(0, flat, h=None, c_source=CSource.FROM_MOVE, total_weight=None)


def require_same_model(run: Run, fingerprint: str) -> None:
    """Raises if the run that goes on has another model."""
    if fingerprint != run.fingerprint:
        raise ConfigError(
            f"--run-dir {run.run_dir.path} holds a run of another model (fingerprint "
            f"{fingerprint[:12]}, now {run.fingerprint[:12]}); choose a new directory"
        )


def _require_known_weights(run: Run, found: Checkpoint) -> None:
    """Raises for a c whose weights are not those of this release."""
    by_examples = run.config.weighting == "examples" and run.layout.indices(Purpose.CONTROL)
    if by_examples and found.total_weight is None:
        raise StateError(
            f"{run.run_dir.path}: an earlier release has written c there without the weights of "
            "--weighting examples; start anew in another --run-dir"
        )


def resume(run: Run, x0: Flat, emit: Emit) -> Standing:
    """The state after the newest checkpoint; what is newer is removed."""
    variates = run.variates
    found = run.checkpoints.newest(lambda checkpoint: variates.require_whole(checkpoint.counted), emit)
    if found is None:
        variates.restore({}, {}, ())
        standing = start(run, x0)
    else:
        _require_known_weights(run, found)
        variates.restore(found.counted, found.norms, found.changed)
        standing = Standing(
            found.round,
            found.flat,
            found.h,
            found.c_source,
            found.total_weight,
            frozenset(found.evicted),
            found.strikes,
        )
        run.checkpoints.drop_after(found.round)
        run.run_dir.write_state(run.layout, found.flat)
    if not run.run_dir.finished():
        emit(RunResumed(round=standing.round, rounds=run.config.rounds))
    return standing
