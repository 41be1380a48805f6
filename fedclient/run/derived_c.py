"""c where the server leaves it to its clients: it follows from what x has moved."""

from __future__ import annotations

from common.errors import WireError
from common.server_step.updates import write_c_from_move
from fedclient.run.phases import LastBroadcast
from fedclient.training.task import Task


def derive_c(task: Task, last: LastBroadcast | None) -> None:
    """Writes c into the broadcast of a round; before the first one it is zero."""
    if task.round == 1:
        return
    if last is None or last.round != task.round - 1:
        raise WireError.broken_contract(
            f"c of round {task.round} did not come, and the round before was missed"
        )
    write_c_from_move(task.layout, last.rules, last.reduced_x, task.broadcast, last.steps)
