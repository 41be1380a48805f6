"""The file of a round under way: private, replaced whole, on disk before training goes on."""

from __future__ import annotations

from pathlib import Path

from common.atomic import make_private
from common.errors import StateError
from common.tensors import safetensors_files
from common.tensors.layout import Flat, Layout, Purpose

_ROUND, _STEP = "belongs to", "step"


class MidRoundFile:
    """Holds one save at the most: the newest of one round."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def there(self) -> bool:
        """Whether there is a save, of whatever round."""
        return self._path.exists()

    def write(self, layout: Layout, flat: Flat, owner: str, step: int) -> None:
        """Replaces what was saved before; `owner` names the round to the last bit that matters."""
        make_private(self._path.parent)  # Somebody may have taken it away while the client runs.
        note = {_ROUND: owner, _STEP: str(step)}
        safetensors_files.write(self._path, layout, flat, Purpose.MODEL, note=note)

    def read(self, layout: Layout, owner: str) -> tuple[int, Flat] | None:
        """The step and the tensors; None if they are another round's. Raises StateError for a damaged one."""
        note = safetensors_files.read_note(self._path)
        if note.get(_ROUND) != owner:
            return None
        flat = safetensors_files.read(self._path, layout)
        if not note.get(_STEP, "").isdecimal():
            raise StateError(f"{self._path} is damaged: it does not say its step")
        return int(note[_STEP]), flat

    def drop(self) -> None:
        """Forgets what was saved."""
        self._path.unlink(missing_ok=True)
