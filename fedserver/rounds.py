"""What a run does, from the preparation to the last evaluation.

Rounds are opened one after the other; the updates of each are folded in the order of client indices as they
come in. Evaluation goes on beside the next round.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from common.algorithms import ALGORITHMS, svr_names
from common.errors import RunError
from common.tensors import Flat, Layout, Purpose, TensorSpec, all_finite
from common.wire import chunk_frames
from fedserver.aggregate import Aggregate, ServerState
from fedserver.federation import Answer, Federation, Result
from fedserver.ledger import Ledger
from fedserver.record import RunDir
from fedserver.spool import Spool
from fedserver.workbench import Workbench


class Rounds:
    """Drives one federation."""

    def __init__(self, federation: Federation, run_dir: RunDir, workbench: Workbench) -> None:
        self._federation = federation
        self._config = federation.config
        self._run_dir = run_dir
        self._workbench = workbench
        self._server: ServerState | None = None
        self._model_bytes = 0
        """Where x ends and c begins in a broadcast."""

    async def run(self) -> None:
        """Everything from preparation to the last evaluation."""
        flat = await self._prepare()
        if not self._federation.members.complete.is_set():
            self._federation.say_waiting()
        await self._federation.members.complete.wait()
        self._write_config()
        evaluation: asyncio.Task[None] | None = None
        try:
            for r in range(1, self._config.rounds + 1):
                flat, closing = await self._train(r, flat)
                if evaluation is not None:
                    await evaluation
                evaluation = asyncio.create_task(self._report(r, flat, closing))
            if evaluation is not None:
                await evaluation
            sets = await self._workbench.conformal(flat[: self._model_bytes], self._config.seed)
            self._run_dir.write_conformal(sets)
        except Exception as error:
            await self._federation.end(str(error))
            raise
        finally:
            if evaluation is not None:
                evaluation.cancel()
                await asyncio.gather(evaluation, return_exceptions=True)
        await self._federation.end("")

    async def _prepare(self) -> Flat:
        """Builds what the run needs and returns the first broadcast: x^0, and c at zero."""
        prepared = await self._workbench.prepare(self._config)
        parameters = [spec.name for spec in prepared.specs if spec.purpose is Purpose.MODEL]
        svr = svr_names(self._config.algorithm, self._config.svr, parameters, prepared.classifier)
        control = [
            TensorSpec(spec.name, spec.dtype, spec.shape, Purpose.CONTROL)
            for spec in prepared.specs
            if spec.name in svr and spec.purpose is Purpose.MODEL
        ]
        layout = Layout([*prepared.specs, *control])
        algorithm, pull = ALGORITHMS[self._config.algorithm], self._config.pull
        ledger = Ledger(self._run_dir.path / "ledger", layout, algorithm, pull)
        self._server = ServerState(layout, algorithm, pull) if algorithm.keeps_h else None
        self._model_bytes = len(prepared.x0)
        flat = layout.allocate()
        flat[: self._model_bytes] = prepared.x0  # The model's tensors open the layout.
        self._federation.set_up(prepared, layout, ledger, Spool(self._run_dir.path / "spool", layout))
        return flat

    def _write_config(self) -> None:
        federation = self._federation
        members = sorted(federation.members.by_name.values(), key=lambda member: member.index)
        self._run_dir.write_config(
            self._config.as_dict()
            | {
                "run_id": federation.run_id,
                "fingerprint": federation.fingerprint,
                "num_classes": federation.prepared.model["num_classes"],
                "svr_names": [
                    federation.layout.specs[k].name for k in federation.layout.indices(Purpose.CONTROL)
                ],
                "class_names": federation.prepared.class_names,
                "clients": [
                    {
                        "name": m.name,
                        "index": m.index,
                        "examples": m.examples,
                        # What a client's own data look like is nobody's business but its own.
                        "classes": federation.prepared.histograms[m.index] if m.shard is not None else None,
                    }
                    for m in members
                ],
            }
        )

    async def _train(self, r: int, flat: Flat) -> tuple[Flat, dict[str, Any]]:
        """Opens a round, folds its updates until every client has answered, and closes it."""
        started = time.monotonic()
        frames = await asyncio.to_thread(lambda: list(chunk_frames(self._federation.layout, flat)))
        current = await self._federation.open(r, frames)
        aggregate = Aggregate(self._federation.layout, flat)
        counted: dict[int, Answer] = {}
        answers = []
        for i, coming in current.answers.items():
            answers.append(answer := await coming)
            if not answer.declined:
                counted[i] = answer
                await asyncio.to_thread(self._fold, aggregate, r, i, answer)
        if not counted:
            reasons = " | ".join(sorted({answer.declined for answer in answers})[:3])
            raise RunError(f"round {r}: no client has an update to give: {reasons}")
        closing: dict[str, Any] = {
            "updates": len(counted),
            "train_loss": sum(answer.loss for answer in counted.values()) / len(counted),
            "validation_accuracy": _mean(answer.validation_accuracy for answer in counted.values()),
            "eta_l": self._federation.eta_l(r),
            "bytes": self._federation.traffic.since_last(),
            "seconds": {"round": time.monotonic() - started},
            "drift": await asyncio.to_thread(aggregate.drift_diversity),
            "layer_drift": await asyncio.to_thread(aggregate.drift_diversity, by_layer=True),
        }
        if self._config.cka and self._evaluates(r):
            updates = [self._federation.spool.path(r, i) for i in counted]
            closing["cka"] = await self._workbench.cka(updates, self._config.cka)
        new = await asyncio.to_thread(self._close, r, flat, aggregate, list(counted))
        closing["norms"] = {"c": self._norm(new), "clients": dict(self._federation.ledger.norms)}
        return new, closing

    def _evaluates(self, r: int) -> bool:
        every = self._config.eval_every
        return r == self._config.rounds or bool(every and r % every == 0)

    def _norm(self, flat: Flat) -> float:
        """||c||."""
        layout = self._federation.layout
        arrays = (layout.array(flat, k) for k in layout.indices(Purpose.CONTROL))
        return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays))

    def _fold(self, aggregate: Aggregate, r: int, i: int, answer: Answer) -> None:
        weight = float(answer.examples) if self._config.weighting == "examples" else 1.0
        c_i = self._federation.ledger.read(i) if self._federation.layout.indices(Purpose.CONTROL) else None
        aggregate.add(self._federation.spool.read(r, i), c_i, weight)

    def _close(self, r: int, flat: Flat, aggregate: Aggregate, counted: list[int]) -> Flat:
        """Makes the round count: the new x and c, and the c_i that went into them."""
        new = aggregate.result(self._config.eta_g, self._config.num_clients, self._server)
        for index, spec in enumerate(self._federation.layout.specs):
            if not all_finite(self._federation.layout.array(new, index), spec.dtype):
                raise RunError(f"round {r}: {spec.name} is not finite any more; lower --eta-l or --eta-g")
        for i in counted:
            self._federation.ledger.count(i, r, flat, self._federation.spool.read(r, i))
        self._run_dir.write_state(self._federation.layout, new)
        self._federation.spool.drop_round(r)
        return new

    async def _report(self, r: int, flat: Flat, closing: dict[str, Any]) -> None:
        """Evaluates x where that is due and writes the round's record."""
        result: dict[str, Any] = {"accuracy": None, "loss": None}
        started = time.monotonic()
        try:
            if self._evaluates(r):
                result = await self._workbench.evaluate(flat[: self._model_bytes])
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


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
