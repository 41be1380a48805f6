"""One self-contained HTML page: no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from common.atomic import replacing
from fedlab.reports.plots import inline_svg
from fedlab.reports.tables import Table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222 }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem }
h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
thead th { border-bottom: 2px solid #888 }
figure { margin: .5rem 0 }
svg { max-width: 100%; height: auto }
code { background: #f3f3f3; padding: .1rem .3rem; border-radius: 3px }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: .5rem }
"""


class Page:
    """Collects the parts of a page in order."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """Starts a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        """A paragraph; `code` in backquotes."""
        pieces = escape(text).split("`")
        marked = "".join(f"<code>{p}</code>" if k % 2 else p for k, p in enumerate(pieces))
        self._parts.append(f"<p>{marked}</p>")

    def table(self, table: Table) -> None:
        """A table."""
        head = "".join(f"<th>{escape(cell)}</th>" for cell in table.headings)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
        )
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def pictures(self, figures: Sequence[Figure]) -> None:
        """Figures side by side where there is room."""
        inner = "".join(f"<figure>{inline_svg(figure)}</figure>" for figure in figures)
        self._parts.append(f'<div class="pictures">{inner}</div>')

    def write(self, path: Path) -> None:
        """Writes the page."""
        page = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self._title)}</title>'
            f"<style>{_STYLE}</style></head><body>{''.join(self._parts)}</body></html>\n"
        )
        with replacing(path) as scratch:
            scratch.write_text(page)
