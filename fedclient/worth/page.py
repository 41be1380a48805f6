"""One HTML page that needs nothing else: no script, no request, light or dark as the reader has it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from common.atomic import PRIVATE, replacing

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #ddd; --bar: #3b6ea5; --soft: #666 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --paper: #16181b; --line: #3a3d42; --bar: #7aa7d6; --soft: #9a9a9a }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper) }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem }
h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left }
.note { color: var(--soft) }
.scale { position: relative; height: 1.1rem; width: 16rem; border-left: 1px solid var(--line) }
.range { position: absolute; top: .35rem; height: .4rem; background: var(--bar); opacity: .45 }
.point { position: absolute; top: .15rem; height: .8rem; width: 2px; background: var(--bar) }
"""


class Page:
    """Collects the parts of a page in order; all text is escaped."""

    def __init__(self, title: str) -> None:
        self._title = escape(title)
        self._parts = [f"<h1>{self._title}</h1>"]

    def heading(self, text: str) -> None:
        """Starts a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str, *, note: bool = False) -> None:
        """A paragraph."""
        kind = ' class="note"' if note else ""
        self._parts.append(f"<p{kind}>{escape(text)}</p>")

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table of text."""
        self._rows(headings, [[escape(cell) for cell in row] for row in rows])

    def intervals(
        self, headings: Sequence[str], rows: Sequence[tuple[str, str, float, float, float]]
    ) -> None:
        """A table with a picture of each share: name, text, lower end, share, upper end."""
        self._rows(
            headings,
            [
                [
                    escape(name),
                    escape(text),
                    '<div class="scale">'
                    f'<div class="range" style="left:{low:.2%};width:{high - low:.2%}"></div>'
                    f'<div class="point" style="left:{share:.2%}"></div></div>',
                ]
                for name, text, low, share, high in rows
            ],
        )

    def _rows(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def write(self, path: Path) -> None:
        """Writes the page, for its owner alone."""
        with replacing(path, PRIVATE) as scratch:
            scratch.write_text(
                f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{self._title}</title>'
                f"<style>{_STYLE}</style></head><body>{''.join(self._parts)}</body></html>\n"
            )
