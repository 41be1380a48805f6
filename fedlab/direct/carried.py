"""What a client takes along from turn to turn, wherever it takes the next one."""

from __future__ import annotations

from dataclasses import dataclass

from fedclient.run.phases import Memory


@dataclass(frozen=True)
class Carried:
    """A client between two turns; what it holds as tensors is in files (`kept_state`)."""

    last_round: int = 0
    taken: bool = False
    keeps_state: bool = False
    held: tuple[int, ...] = ()
    """Rounds whose state can be read."""
    has_frozen: bool = False
    """Whether it has got the tensors that stay as they are."""

    @property
    def memory(self) -> Memory:
        """As a client knows it. The x of its last round is not in it."""
        return Memory(self.last_round, self.taken, self.keeps_state)
