"""What a setting is to its user: its sentence, its place in the help, the values it may have.

A field of `RunConfig` is declared with `Section.setting`. Its flag, its key in a settings file, the help and
docs/settings.md all come from there, so that each setting is described once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import Field, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from common.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Limit:
    """What the value of a setting must be, as a test and in words."""

    holds: Callable[[Any], bool]
    text: str


COUNT = Limit(lambda n: n >= 1, "must be at least 1")
NOT_NEGATIVE = Limit(lambda n: n >= 0, "must not be negative")
POSITIVE = Limit(lambda x: 0 < x < math.inf, "must be positive")
BELOW_1 = Limit(lambda x: 0 <= x < 1, "must be from 0 to below 1")


def at_most(most: int) -> Limit:
    """A largest value."""
    return Limit(lambda n: n <= most, f"must be at most {most}")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All that is known of a setting besides its name, type and default."""

    section: Section
    text: str
    """The sentence that explains it."""
    limits: tuple[Limit, ...] = ()
    """Hold for every value but None."""
    choices: Collection[str] = ()
    """The words it may have. Those of a table are looked up when a value is required to be one."""
    metavar: str | None = None
    """What stands for its value in the help, where the type alone says too little."""
    if_unset: str = ""
    """What happens without it, where the default does not say so."""
    word_for_none: str = ""
    """What is written for None where None is not the default."""

    def require(self, name: str, value: Any) -> None:
        """Raises for a value that breaks a limit."""
        for limit in self.limits:
            if value is not None and not limit.holds(value):
                raise ConfigError(f"{flag(name)} {limit.text}, got {value!r}")
        if self.choices and value is not None and value not in self.choices:
            raise ConfigError(f"{flag(name)} must be one of {', '.join(self.choices)}, got {value!r}")


class Section(StrEnum):
    """Headings of the help, in their order."""

    START = "Start here"
    RUN = "Run"
    DATA = "Data"
    MODEL = "Model"
    TRAINING = "Training"
    PARTICIPATION = "Participation"
    WIRE = "Wire"
    SECURITY = "Security"

    def setting(
        self,
        default: T,
        text: str,
        *limits: Limit,
        choices: Collection[str] = (),
        metavar: str | None = None,
        if_unset: str = "",
        word_for_none: str = "",
    ) -> T:
        """A field of a dataclass that is a setting under this heading."""
        about = Setting(
            section=self,
            text=text,
            limits=limits,
            choices=choices,
            metavar=metavar,
            if_unset=if_unset,
            word_for_none=word_for_none,
        )
        return field(default=default, metadata={"setting": about})


def about(found: Field[Any]) -> Setting:
    """What a field was declared with."""
    declared: Setting = found.metadata["setting"]
    return declared


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")
