"""One run of an experiment: its settings, its folder, its command line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """A simulation by its flags. Equal flags have one folder, so that experiments share finished runs."""

    flags: tuple[tuple[str, str], ...]
    stop_at: float | None = None
    """Accuracy at which it may end; no flag, because the rounds up to there are those of the whole run."""

    @classmethod
    def of(cls, settings: Mapping[str, object], stop_at: float | None = None) -> Cell:
        """From settings by name; a list becomes a repeated flag, a truth value a switch."""
        flags: list[tuple[str, str]] = []
        for name, value in settings.items():
            flag = "--" + name.replace("_", "-")
            if isinstance(value, bool):
                flags.append((flag if value else flag.replace("--", "--no-", 1), ""))
            else:
                flags += [(flag, str(v)) for v in (value if isinstance(value, list | tuple) else [value])]
        return cls(tuple(flags), stop_at)

    @property
    def key(self) -> str:
        """The folder's name: readable, and different for different flags."""
        flags = [(flag, Path(value).name if flag == "--init" else value) for flag, value in self.flags]
        pairs = [(flag.removeprefix("--"), value) for flag, value in flags if flag != "--data-dir"]
        text = "-".join("-".join(filter(None, pair)) for pair in pairs)
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", text)
        if name == text and len(name) <= 150:
            return name
        return f"{name[:130]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def command(self) -> list[str]:
        """The command line of `fedlab` that makes the run, but for its folder."""
        return ["simulate", *(part for pair in self.flags for part in pair if part)]

    def arguments(self, folder: Path) -> list[str]:
        """The whole command line."""
        return [*self.command(), "--resume", "--run-dir", str(folder / self.key)]
