"""Rows of one kind, as a list that a notebook shows as a table."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from common.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Row = TypeVar("Row", bound=DataclassInstance)
else:
    Row = TypeVar("Row")

MOST_SHOWN = 30
"""Rows of a table in a notebook; those in the middle of a longer one are left out."""


class Table(Sequence[Row], Generic[Row]):
    """A list of dataclass instances with one column for each field."""

    def __init__(self, kind: type[Row], rows: Iterable[Row]) -> None:
        self._rows = tuple(rows)
        self.columns = tuple(each.name for each in fields(kind))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> list[Any]:
        """The values of one field, row by row."""
        if name not in self.columns:
            raise ConfigError(f"no column {name!r}; there are {', '.join(self.columns)}")
        return [getattr(row, name) for row in self._rows]

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns by name, as data frames are made of."""
        return {name: self.column(name) for name in self.columns}

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`, where pandas is installed."""
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        return pandas.DataFrame(self.to_dict())

    def _shown(self) -> list[list[str]]:
        """The cells as text; a row of dots stands for those that are left out."""
        cells = [[_text(getattr(row, name)) for name in self.columns] for row in self._rows]
        if len(cells) <= MOST_SHOWN:
            return cells
        half = MOST_SHOWN // 2
        return [*cells[:half], ["..."] * len(self.columns), *cells[-half:]]

    def __repr__(self) -> str:
        cells = [list(self.columns), *self._shown()]
        widths = [max(len(row[k]) for row in cells) for k in range(len(self.columns))]
        lines = (
            "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in cells
        )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows. Names in it may be words of peers: they are text here, never markup."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>"
            for row in self._shown()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)
