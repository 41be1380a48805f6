"""Beside the next round: in the end model.safetensors is of the last one, however slow the disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from safetensors.numpy import load_file

from common.server_step.step import CSource
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec
from fedserver.run.close import Tidying
from fedserver.run.prepare import Standing
from fedserver.run.run import Run
from fedserver.store.run_dir import RunDir

LAYOUT = Layout([TensorSpec("w", "float32", (1,)), TensorSpec("w", "float32", (1,), Purpose.CONTROL)])
LAST = 3


class SlowDisk(RunDir):
    """Never has x written at once, always soon, and holds up whoever writes that of an earlier round."""

    state_is_due = False

    def __init__(self, path: Path) -> None:
        super().__init__(path, resume=False)
        self.held = threading.Event()
        self.provenance = lambda r: {}  # type: ignore[method-assign]

    def write_state(self, layout: Layout, flat: Flat, r: int, *, synced: bool = True) -> None:
        """As ever, and late."""
        if r < LAST:
            assert self.held.wait(60)
        super().write_state(layout, flat, r, synced=synced)
        self.state_pause_s = 0.0


def stands(r: int) -> Standing:
    """After round r, of which x is r."""
    flat = LAYOUT.allocate()
    for k in range(len(LAYOUT.specs)):
        LAYOUT.array(flat, k)[:] = r
    return Standing(r, flat, None, CSource.FROM_MOVE, None)


def run_in(run_dir: RunDir, rounds: dict[int, Standing]) -> Run:
    """As much of a run as is tidied up."""
    nothing: Any = lambda *arguments: None  # noqa: E731
    return cast(
        "Run",
        SimpleNamespace(
            layout=LAYOUT,
            run_dir=run_dir,
            variates=SimpleNamespace(prune=nothing),
            spool=SimpleNamespace(drop_parts=nothing, drop_round=nothing, drop_spares=nothing),
            checkpoints=SimpleNamespace(
                prune=nothing, drop_spare=nothing, read=rounds.__getitem__, rounds=lambda: [*rounds]
            ),
        ),
    )


@pytest.mark.parametrize("steps", range(6))
def test_x_of_an_earlier_round_is_never_the_last_that_is_written(tmp_path: Path, steps: int) -> None:
    async def rounds() -> None:
        every = {r: stands(r) for r in range(1, LAST + 1)}
        run_dir = SlowDisk(tmp_path / "run")
        with run_dir:
            run = run_in(run_dir, every)
            tidying = Tidying(run)
            for r, standing in every.items():
                tidying.begin(run, standing)
                if r < LAST:
                    run_dir.held.set()
                    await tidying.done()
                    run_dir.held.clear()
                    for _ in range(steps):  # So far the loop gets with the x that is to follow.
                        await asyncio.sleep(0)
            run_dir.held.set()
            await tidying.end()

    asyncio.run(rounds())
    assert load_file(tmp_path / "run" / "model.safetensors")["w"] == [LAST]
    assert load_file(tmp_path / "run" / "control.safetensors")["w"] == [LAST]
