"""What a run does, from the preparation to the last evaluation.

Rounds are opened one after the other; the updates of each are folded in the order of client indices as they
come in. Evaluation goes on beside the next round.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from common import seeds
from common.algorithms import ALGORITHMS, svr_names
from common.errors import ConfigError, RunError
from common.server_step.aggregate import ServerState
from common.server_step.updates import UpdateReader, computable, reduced, share_variate, shared_step_sum
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec, all_finite, norm
from common.wire.chunks import Frame, chunk_frames
from common.wire.encoding import downward
from fedserver.run.federation import Federation, Result
from fedserver.run.fold import Fold
from fedserver.run.round import OpenRound
from fedserver.store.checkpoints import Checkpoint, Checkpoints
from fedserver.store.run_dir import RunDir, without_nan
from fedserver.store.seats import described, seated
from fedserver.store.spool import Spool
from fedserver.store.variates import Variates
from fedserver.worker.process import TorchWorker


class Rounds:
    """Drives one federation."""

    def __init__(self, federation: Federation, run_dir: RunDir, worker: TorchWorker) -> None:
        self._federation = federation
        federation.members.on_seated = self._write_seats
        self._config = federation.config
        self._run_dir = run_dir
        self._worker = worker
        self._algorithm = ALGORITHMS[self._config.algorithm]
        self._server: ServerState | None = None
        self._checkpoints: Checkpoints
        self._model_bytes = 0
        """Where x ends and c begins in a broadcast."""
        self._shared = True
        """Whether c follows from what x did in the round before; at first it is zero."""

    async def run(self) -> None:
        """Everything from preparation, or from where an earlier process was, to the last evaluation."""
        if self._run_dir.previous is None:
            await self._federation.gather()
            self._config = self._federation.config
        flat = await self._prepare()
        done = 0
        if self._run_dir.previous is not None:
            flat, done = await self._resume(flat)
        if not self._federation.members.complete.is_set():
            self._federation.say_waiting()
        await self._federation.members.complete.wait()
        if self._run_dir.previous is None:
            self._write_seats()
        evaluation: asyncio.Task[None] | None = None
        try:
            for r in range(done + 1, self._config.rounds + 1):
                flat, closing = await self._train(r, flat)
                if evaluation is not None:
                    await evaluation
                evaluation = asyncio.create_task(self._report(r, flat, closing))
            if evaluation is not None:
                await evaluation
            if not self._run_dir.finished():
                sets = await self._worker.conformal(flat[: self._model_bytes], self._config.seed)
                self._run_dir.write_conformal(sets)
        except OSError:
            # The run is not over: it goes on here once the disk is well again.
            raise
        except Exception as error:
            await self._federation.end(str(error))
            raise
        finally:
            if evaluation is not None:
                evaluation.cancel()
                await asyncio.gather(evaluation, return_exceptions=True)
        await self._federation.end("")

    def _write_seats(self) -> None:
        self._run_dir.write_config(described(self._federation))

    async def _prepare(self) -> Flat:
        """Builds what the run needs and returns the first broadcast: x^0, and c at zero."""
        prepared = await self._worker.prepare(self._config)
        parameters = [spec.name for spec in prepared.specs if spec.purpose is Purpose.MODEL]
        svr = svr_names(self._config.algorithm, self._config.svr, parameters, prepared.classifier)
        control = [
            TensorSpec(spec.name, spec.dtype, spec.shape, Purpose.CONTROL)
            for spec in prepared.specs
            if spec.name in svr and spec.purpose is Purpose.MODEL
        ]
        layout = Layout([*prepared.specs, *control])
        codecs, derived, prox_weight = (
            self._config.codecs,
            self._config.variates == "derived",
            self._config.prox_weight,
        )
        if derived and not computable(layout):
            raise ConfigError(
                "--variates derived needs float32 or float64 in S_svr, the model has others; "
                "use --variates explicit"
            )
        update_reader = UpdateReader(layout, self._algorithm, codecs.up, codecs.control, derived)
        self._checkpoints = Checkpoints(self._run_dir.path / "checkpoints", layout)
        archive = self._run_dir.path / "checkpoints" / "ledger"
        variates = Variates(self._run_dir.path / "ledger", archive, layout, self._algorithm, prox_weight)
        self._server = ServerState(layout, self._algorithm, prox_weight) if self._algorithm.keeps_h else None
        self._model_bytes = len(prepared.x0)
        flat = layout.allocate()
        flat[: self._model_bytes] = prepared.x0  # The model's tensors open the layout.
        spool = Spool(self._run_dir.path / "spool", update_reader.encoding)
        if self._run_dir.previous is not None:
            self._federation.members.restore(seated(self._run_dir.previous, prepared))
        self._federation.set_up(prepared, downward(layout, codecs), update_reader, variates, spool)
        return flat

    async def _resume(self, flat: Flat) -> tuple[Flat, int]:
        """Goes back to the newest checkpoint; returns x and c as of then, and the last closed round."""
        federation, previous = self._federation, self._run_dir.previous
        assert previous is not None
        if previous["fingerprint"] != federation.fingerprint:
            raise ConfigError(
                f"--run-dir {self._run_dir.path} holds a run of another model (fingerprint "
                f"{previous['fingerprint'][:12]}, now {federation.fingerprint[:12]}); choose a new directory"
            )
        variates = federation.variates
        found = self._checkpoints.newest(lambda c: variates.restore(c.counted, c.norms), federation.say)
        done = 0
        if found is None:
            variates.restore({}, {})
        else:
            flat, done, self._shared = found.flat, found.round, found.shared
            if self._server is not None:
                self._server.h = dict(found.h)
            self._checkpoints.drop_after(done)
            self._run_dir.write_state(federation.layout, flat)
        federation.say(f"going on with run {federation.run_id} after round {done} of {self._config.rounds}")
        await self._catch_up(done)
        return flat, done

    async def _catch_up(self, done: int) -> None:
        """Writes the records that an earlier process did not come to."""
        recorded = self._run_dir.keep_rounds(done)
        for record in recorded:
            if record["accuracy"] is not None:
                self._federation.last = Result(record["round"], record["accuracy"], record["loss"])
        last = recorded[-1]["round"] if recorded else 0
        for r in self._checkpoints.rounds():
            if last < r <= done:
                checkpoint = self._checkpoints.read(r)
                await self._report(r, checkpoint.flat, checkpoint.closing)

    async def _train(self, r: int, flat: Flat) -> tuple[Flat, dict[str, Any]]:
        """Opens a round, folds its updates until every client has answered, and closes it."""
        started = time.monotonic()
        seen, frames = await asyncio.to_thread(self._encode, r, flat)
        derivable = self._shared and self._config.variates == "derived"
        current = await self._federation.open(r, seen, frames, derivable)
        fold = Fold(self._federation, current)
        answers = []
        supervision = asyncio.create_task(self._federation.supervise(current))
        try:
            for i, coming in current.answers.items():
                answers.append(answer := await coming)
                if not answer.declined:
                    await asyncio.to_thread(fold.take, i, answer)
        finally:
            supervision.cancel()
        await asyncio.to_thread(fold.finish)
        if not fold.counted:
            reasons = " | ".join(sorted({answer.declined for answer in answers})[:3])
            raise RunError(f"round {r}: no client has an update to give: {reasons}")
        closing: dict[str, Any] = {
            **await asyncio.to_thread(fold.record),
            "eta_l": self._federation.eta_l(r),
            **self._federation.traffic.close_round(),
            "seconds": {
                "round": time.monotonic() - started,
                "train": max(answer.train_seconds for answer in fold.counted.values()),
            },
        }
        if self._config.cka and self._evaluates(r):
            updates = await asyncio.to_thread(fold.model_files)
            closing["cka"] = await self._worker.cka(updates, self._config.cka)
        new = await asyncio.to_thread(self._close, current, flat, fold, closing)
        return new, closing

    def _encode(self, r: int, flat: Flat) -> tuple[Flat, list[Frame]]:
        """x and c as clients will see them, and the frames that carry them."""
        encoding = self._federation.down
        seen = flat if encoding.plain else flat.copy()
        raw = encoding.encode_in_place(seen, seeds.stream(self._config.seed, seeds.CODEC_DOWN, r), None, None)
        return seen, list(chunk_frames(encoding.encoded, raw))

    def _evaluates(self, r: int) -> bool:
        every = self._config.eval_every
        return r == self._config.rounds or bool(every and r % every == 0)

    def _norm(self, flat: Flat) -> float:
        """||c||."""
        layout = self._federation.layout
        arrays = (layout.array(flat, k) for k in layout.indices(Purpose.CONTROL))
        return norm(arrays)

    def _close(self, current: OpenRound, flat: Flat, fold: Fold, closing: dict[str, Any]) -> Flat:
        """Makes the round count: the new x and c, and the c_i that went into them."""
        r, layout = current.number, self._federation.layout
        new = fold.aggregate.result(flat, self._config.eta_g, self._config.num_clients, self._server)
        step_sum = shared_step_sum(
            fold.step_sums(), self._config.num_clients, self._config.eta_g, self._config.weighting
        )
        self._shared = step_sum is not None and fold.consistent and self._federation.down.plain
        if step_sum is not None and self._shared:
            share_variate(layout, self._algorithm, reduced(layout, flat), new, step_sum)
        for index, spec in enumerate(layout.specs):
            if not all_finite(layout.array(new, index), spec.dtype):
                raise RunError(f"round {r}: {spec.name} is not finite any more; lower --eta-l or --eta-g")
        variates = self._federation.variates
        closing["norms"] = {"c": self._norm(new), "clients": dict(variates.norms)}
        self._checkpoints.write(
            Checkpoint(
                round=r,
                flat=new,
                h=self._server.h if self._server is not None else {},
                counted=variates.counted | dict.fromkeys(fold.counted, r),
                norms=variates.norms,
                shared=self._shared,
                closing=without_nan(closing),
            )
        )
        for i in fold.counted:
            variates.count(i, r)
        variates.prune(self._checkpoints.rounds()[0])
        self._run_dir.write_state(layout, new)
        self._federation.spool.drop_round(r)
        return new

    async def _report(self, r: int, flat: Flat, closing: dict[str, Any]) -> None:
        """Evaluates x where that is due and writes the round's record."""
        result: dict[str, Any] = {"accuracy": None, "loss": None}
        started = time.monotonic()
        try:
            if self._evaluates(r):
                result = await self._worker.evaluate(flat[: self._model_bytes])
                self._federation.last = Result(r, result["accuracy"], result["loss"])
                closing["seconds"]["evaluate"] = time.monotonic() - started
        finally:
            # A run that is stopped meanwhile still has this round, only without its evaluation.
            self._run_dir.append_round({"round": r} | result | closing)
        accuracy = "" if result["accuracy"] is None else f"accuracy {result['accuracy']:.2%}, "
        down, up = (sum(closing["bytes"][direction].values()) for direction in ("down", "up"))
        self._federation.say(
            f"round {r}/{self._config.rounds}: {accuracy}train loss {closing['train_loss']:.4f}, "
            f"{closing['updates']} updates, {down / 1e6:.2f} MB down, {up / 1e6:.2f} MB up, "
            f"{closing['seconds']['round']:.1f} s"
        )
