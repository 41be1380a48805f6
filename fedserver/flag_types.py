"""Flags that several commands share, and kinds of values that flags take."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import click

from common import commandline
from common.installed.table import Table
from fedserver.settings import Section


class OneOf(click.Choice[str]):
    """One of some words. Of a table, the help shows what is built in; the rest is looked for when needed."""

    def __init__(self, words: Collection[str]) -> None:
        super().__init__(tuple(words.built_in if isinstance(words, Table) else words))
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word itself."""
        if value not in self._words:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, self._words))}.", param, ctx)
        return value


def or_word(kind: type[int] | type[float], word: str) -> Callable[[Any], Any]:
    """A type for click: a number, or a word that stands for None."""
    expected = "a whole number" if kind is int else "a number"

    def number(value: Any) -> Any:
        if value == word:
            return None
        try:
            return kind(value)
        except (TypeError, ValueError) as error:
            raise click.BadParameter(f"expected {expected} or {word}, got {value!r}") from error

    return number


resume_option = commandline.option(
    Section.RUN,
    "--resume/--no-resume",
    default=True,
    help="Go on with the run in --run-dir, if there is one.",
)
