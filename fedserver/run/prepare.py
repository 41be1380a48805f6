"""Prepares a run: model and shards from the worker, layout, encodings and stores, and where it stands."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from common.algorithms import matching
from common.errors import ConfigError, StateError
from common.events import Emit
from common.records.run import RunRecord
from common.server_step.adaptive import Choice
from common.server_step.aggregate import ServerState
from common.server_step.local_rules import PLACES
from common.server_step.rules import Rules
from common.server_step.step import CSource, reweighted
from common.server_step.updates import stores_plain_floats
from common.tensors.classes import FrozenTensors, TensorClass
from common.tensors.layout import Flat, Layout, Purpose
from common.wire.limits import require_announceable, require_assignable
from fedserver.config import RunConfig
from fedserver.events.idle import SettingIdle, SwitchIdle
from fedserver.events.run import InitIncomplete, MomentumIgnored, RunResumed, TensorsApart
from fedserver.run.run import Run, encodings, rules_of
from fedserver.store.checkpoints import Checkpoint, Checkpoints, LateCheckpoints
from fedserver.store.run_dir import RunDir
from fedserver.store.spool import Spool
from fedserver.store.variates import Variates
from fedserver.worker.process import TorchWorker

KEPT_BYTES = 256 << 20
"""Of variates that a simulation has in memory too: a server's own memory does not grow with its clients."""

SWITCHES = {
    "momentum_on": "momentum",
    "weight_decay_on": "weight_decay",
    "clip_on": "clip_norm",
    "cka_estimator": "cka",
}
"""Settings that say where or how another acts, and that other."""


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
    choice: Choice | None = None
    """S_svr of the next round, where it changes from round to round."""

    def under(self, rules: Rules, layout: Layout) -> Standing:
        """The same before a round in which all clients together weigh something else, perhaps."""
        before = rules.total_weight if self.total_weight is None else self.total_weight
        return replace(self, flat=reweighted(layout, self.flat, before, rules.total_weight))


async def prepare(
    config: RunConfig, run_id: str, run_dir: RunDir, worker: TorchWorker, in_process: bool = False
) -> tuple[Run, Flat]:
    """Everything that clients need before they can join, and x^0, which nobody needs after the start."""
    prepared = await worker.prepare(config)
    classes = config.tensor_classes(config.algorithm, prepared.specs, prepared.classifier)
    layout = classes.broadcast
    rules = rules_of(config, 1, prepared.augment, 0)
    widest = _widest(config, layout)
    if rules.derived and not stores_plain_floats(widest):
        raise ConfigError(
            "--variates derived needs float32 or float64 in S_svr, the model has others; "
            "use --variates explicit"
        )
    if rules.warm_variates and not layout.indices(Purpose.CONTROL):
        raise ConfigError("--warm-variates needs parameters in S_svr, which is empty before round 1")
    method, (down, up) = rules.method, encodings(config, layout)
    beside = Layout([*method.variates(widest).specs, *classes.frozen.specs])
    require_announceable(*encodings(config, widest), beside)
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
        checkpoints=(LateCheckpoints if in_process else Checkpoints)(folder / "checkpoints", layout),
        variates=Variates(
            folder / "ledger",
            archive,
            layout,
            method,
            config.prox_weight,
            kept_bytes=KEPT_BYTES if in_process else 0,
        ),
        spool=Spool(folder / "spool", up, layout, in_files=bool(config.cka)),
        frozen=FrozenTensors(classes.frozen, classes.picked(prepared.x0, classes.frozen)),
        in_process=in_process,
    )
    run_dir.frozen = run.frozen
    return run, classes.picked(prepared.x0, classes.shared)


def _widest(config: RunConfig, layout: Layout) -> Layout:
    """The layout with the largest S_svr that a run may come to have; raises if there is nothing to choose."""
    if not config.svr_budget:
        return layout
    names = [layout.specs[k].name for k in layout.indices(Purpose.MODEL)]
    if len({name.rpartition(".")[0] for name in names}) < 2:
        raise ConfigError(
            "--svr auto compares modules, and the model has one; choose S_svr with --svr PATTERN"
        )
    return layout.reducing(names)


def tell_of_idle_settings(run: Run, emit: Emit) -> None:
    """Says which settings act on nothing in this run, and what else its user may not expect."""
    classes = run.classes
    _tell_of_what_acts_on_nothing(run, emit)
    if run.prepared.init_told:
        emit(InitIncomplete(path=run.config.init or "", reason=run.prepared.init_told))
    kinds = Counter(classes.of.values())
    if kinds[TensorClass.PERSONAL] or kinds[TensorClass.FROZEN]:
        emit(
            TensorsApart(
                personal=kinds[TensorClass.PERSONAL],
                frozen=kinds[TensorClass.FROZEN],
                reduced=kinds[TensorClass.REDUCED],
                shared=kinds[TensorClass.SHARED] + kinds[TensorClass.REDUCED],
            )
        )


def _tell_of_what_acts_on_nothing(run: Run, emit: Emit) -> None:
    """Raises for a pattern that selects nothing."""
    config, classes = run.config, run.classes
    rules, svr = rules_of(config, 1, run.prepared.augment, 0), classes.names(TensorClass.REDUCED)
    trained = [
        spec.name
        for spec in run.prepared.specs
        if spec.purpose is Purpose.MODEL and classes.of[spec.name] is not TensorClass.FROZEN
    ]
    for pattern in config.momentum_on:
        if pattern not in PLACES:
            matching(pattern, trained, "--momentum-on")
    if config.momentum and not rules.with_momentum(trained, svr):
        emit(MomentumIgnored(momentum=config.momentum, momentum_on=config.momentum_on))
    if config.weight_decay and not rules.decayed(trained, svr):
        emit(SettingIdle(setting="--weight-decay", switch="--weight-decay-on"))
    if config.clip_norm is not None and not rules.clipped(trained, svr):
        emit(SettingIdle(setting="--clip-norm", switch="--clip-on"))
    for switch, setting in SWITCHES.items():
        if not getattr(config, setting) and getattr(config, switch) != getattr(RunConfig, switch):
            where, what = ("--" + name.replace("_", "-") for name in (switch, setting))
            emit(SwitchIdle(switch=where, setting=what))


def start(run: Run, x0: Flat) -> Standing:
    """Before the first round: x^0, and c at zero, which any client knows."""
    flat = run.layout.allocate()
    run.model(flat)[:] = x0
    choice = Choice() if run.adapts else None
    return Standing(0, flat, h=None, c_source=CSource.FROM_MOVE, total_weight=None, choice=choice)


def require_same_model(run: Run, previous: RunRecord) -> None:
    """Raises if the run that goes on has another model, or started from other values."""
    started = "another --init file, or frozen tensors that were made otherwise"
    for what, before, now in (
        ("another model (fingerprint", previous.fingerprint, run.fingerprint),
        (f"{started} (SHA-256", previous.init_sha256, run.prepared.init_digest),
        (f"{started} (SHA-256", previous.frozen_sha256, run.frozen.digest),
    ):
        if before != now:
            raise ConfigError(
                f"--run-dir {run.run_dir.path} holds a run of {what} {before[:12] or 'none'}, "
                f"now {now[:12] or 'none'}); choose a new directory"
            )


def _require_known_weights(run: Run, found: Checkpoint) -> None:
    """Raises for a c whose weights are not those of this release."""
    by_examples = run.config.weighting == "examples" and run.layout.indices(Purpose.CONTROL)
    if by_examples and found.total_weight is None:
        raise StateError(
            f"{run.run_dir.path}: an earlier release has written c there without the weights of "
            "--weighting examples; start anew in another --run-dir"
        )


def _reducing(run: Run, choice: Choice | None) -> Run:
    return run if choice is None else run.reducing(choice)


def resume(run: Run, x0: Flat, emit: Emit) -> tuple[Run, Standing]:
    """The run with its S_svr, and where it stands, after the newest checkpoint; what is newer is removed."""
    variates = run.variates

    def require_whole(checkpoint: Checkpoint) -> None:
        _reducing(run, checkpoint.choice)
        variates.require_whole(checkpoint.counted)

    found = run.checkpoints.newest(require_whole, emit)
    if found is None:
        variates.restore({}, {}, ())
        standing = start(run, x0)
        run = _reducing(run, standing.choice)
    else:
        run = _reducing(run, found.choice)
        _require_known_weights(run, found)
        # With a changing S_svr a client may hold a variate of a round that is undone: all get theirs again.
        everybody = set(found.counted) if run.adapts else set()
        variates.restore(found.counted, found.norms, found.changed | everybody)
        standing = Standing(
            found.round,
            found.flat,
            found.h,
            found.c_source,
            found.total_weight,
            frozenset(found.evicted),
            found.strikes,
            found.choice,
        )
        run.checkpoints.drop_after(found.round)
    recorded = run.run_dir.go_back(standing.round, run.checkpoints.lacking, emit)
    closings = [run.checkpoints.closing(r) for r in run.checkpoints.rounds() if r not in recorded]
    run.run_dir.remember([*run.run_dir.records(), *(each for each in closings if each is not None)])
    if found is not None:
        run.run_dir.write_state(run.layout, found.flat, found.round)
    if not run.run_dir.finished():
        emit(RunResumed(round=standing.round, rounds=run.config.rounds))
    return run, standing
