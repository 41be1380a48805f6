"""One self-contained HTML page: nothing is loaded from elsewhere, and no word of a run is markup.

The page says by its Content-Security-Policy that it runs the one script and uses the one style that it was
written with, known by their digests, and asks nobody for anything: a name that would get past escaping has no
effect.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from common.atomic import replacing
from common.errors import printable
from common.page.charts import MAX_ROWS, Chart

HERE = Path(__file__).parent
WORD = 400
"""Characters that are shown of one text out of a run."""
LONG = 4000
"""The same of a paragraph."""
CONTENTS_FROM = 3
"""A page with more headings than this begins with links to them."""
_BAD = ' class="bad"'
SCRIPTS = (HERE / "page.js", HERE / "charts.js")


class Rows(Protocol):
    """A table."""

    @property
    def headings(self) -> Sequence[str]: ...
    @property
    def rows(self) -> Sequence[Sequence[str]]: ...


class Page:
    """Collects the parts of a page in order."""

    def __init__(self, title: str, lead: str = "", scripts: Sequence[Path] = ()) -> None:
        """`scripts` come after those that draw charts."""
        self._title = _text(title)
        self._parts: list[str] = []
        self._scripts = (*SCRIPTS, *scripts)
        self._headings: list[str] = []
        self._charts: list[object] = []
        self._documents: dict[str, object] = {}
        self._lead = lead

    def heading(self, text: str) -> None:
        """Starts a section."""
        self._headings.append(_text(text))
        self._parts.append(f'<h2 id="part-{len(self._headings)}">{self._headings[-1]}</h2>')

    def text(self, text: str, *, note: bool = False) -> None:
        """A paragraph; `code` in backquotes."""
        kind = ' class="note"' if note else ""
        self._parts.append(f"<p{kind}>{_marked(text)}</p>")

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """A few figures, each under its name."""
        cells = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts)
        self._parts.append(f'<dl class="facts">{cells}</dl>')

    def notices(self, notices: Iterable[tuple[str, str, bool]], *, first: int = 0, folded: str = "") -> None:
        """What a reader should know: a word for its kind, a sentence, and whether it is bad; numbered."""
        items = "".join(
            f'<li data-notice="{k}"{_BAD if bad else ""}><span class="kind">{_text(kind)}</span>'
            f"<p>{_text(text, LONG)}</p></li>"
            for k, (kind, text, bad) in enumerate(notices, first)
        )
        self._parts.append(_folded(folded, f'<ul class="findings">{items}</ul>'))

    def table(self, table: Rows, *, folded: str = "") -> None:
        """A table; `folded` is what to click on to see it."""
        self._parts.append(_folded(folded, _table(table.headings, table.rows)))

    def links(self, links: Iterable[tuple[str, str, str]]) -> None:
        """Files beside the page: the path from here, its name, and what it is."""
        items = "".join(
            f'<li><a href="{escape(quote(path))}">{_text(name)}</a> {_marked(text)}</li>'
            for path, name, text in links
        )
        self._parts.append(f"<ul>{items}</ul>")

    def charts(self, charts: Sequence[Chart], *, wide: bool = False) -> None:
        """Pictures side by side where there is room, or one below the other."""
        figures = []
        for chart in charts:
            headings, rows = chart.rows()
            numbers = _folded("the numbers", _table(headings, rows[:MAX_ROWS]) + _rest(len(rows)))
            figures.append(
                f"<figure><figcaption>{_text(chart.title)}</figcaption>"
                f'<div data-chart="{len(self._charts)}"></div>{numbers}</figure>'
            )
            self._charts.append(chart.document())
        kind = "charts wide" if wide else "charts"
        self._parts.append(f'<div class="{kind}">{"".join(figures)}</div>')

    def place(self, name: str, document: object) -> None:
        """Where a script of the page draws; it finds the document under this name."""
        self._documents[name] = document
        self._parts.append(f'<div class="card" id="place-{escape(name)}"></div>')

    def html(self) -> str:
        """The page."""
        style = (HERE / "page.css").read_text()
        script = "\n".join(('"use strict";(() => {', *(path.read_text() for path in self._scripts), "})();"))
        policy = (
            f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
            "base-uri 'none'; form-action 'none'"
        )
        data = "".join(
            f'<script type="application/json" id="{escape(name)}">{_embedded(document)}</script>'
            for name, document in {"charts": self._charts, **self._documents}.items()
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{self._title}</title><style>{style}</style></head><body><main>"
            "<noscript><p>Pictures need JavaScript, which is in this file; tables do not.</p></noscript>"
            f"{self._head()}{''.join(self._parts)}</main>{data}<script>{script}</script></body></html>\n"
        )

    def _head(self) -> str:
        lead = f'<p class="lead">{_marked(self._lead)}</p>' if self._lead else ""
        links = (f'<a href="#part-{k}">{name}</a>' for k, name in enumerate(self._headings, 1))
        contents = f"<nav>{''.join(links)}</nav>" if len(self._headings) > CONTENTS_FROM else ""
        return f"<h1>{self._title}</h1>{lead}{contents}"

    def write(self, path: Path) -> None:
        """Writes the page."""
        with replacing(path) as scratch:
            scratch.write_text(self.html())


def _text(text: str, most: int = WORD) -> str:
    return escape(printable(text, most))


def _marked(text: str) -> str:
    pieces = _text(text, LONG).split("`")
    return "".join(f"<code>{piece}</code>" if k % 2 else piece for k, piece in enumerate(pieces))


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of words are on the left, those of numbers on the right."""
    words = {k for k in range(len(headings)) if k == 0 or any(not _is_number(row[k]) for row in rows)}
    kind = [' class="word"' if k in words else "" for k in range(len(headings))]
    head = "".join(f'<th scope="col"{kind[k]}>{_text(cell)}</th>' for k, cell in enumerate(headings))
    body = "".join(
        "<tr>" + "".join(f"<td{kind[k]}>{_text(cell)}</td>" for k, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _is_number(cell: str) -> bool:
    return not cell or cell[0] in "-+.0123456789"


def _folded(name: str, inner: str) -> str:
    return f"<details><summary>{_text(name)}</summary>{inner}</details>" if name else inner


def _rest(rows: int) -> str:
    return f'<p class="note">The first {MAX_ROWS} of {rows} rows.</p>' if rows > MAX_ROWS else ""


def _embedded(document: object) -> str:
    """JSON that no HTML parser takes for anything else: there is no <, > or & in it."""
    text = json.dumps(_finite(document), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: object) -> object:
    """The same with what JSON has no word for as null, and words of peers fit to be shown."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return printable(value, WORD)
    if isinstance(value, dict):
        return {printable(str(name), WORD): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
