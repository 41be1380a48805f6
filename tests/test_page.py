"""Pages hold what they are given as text: no name of a run can do anything in them."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

from common.page.charts import Bars, Curves, HeatMap, View
from common.page.page import HERE, SCRIPTS, Page
from fedwire.timeline.page import SCRIPT

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!--\u202e\u2028`"
ELEMENTS = (
    *("html", "head", "meta", "title", "style", "body", "main", "noscript", "script", "nav", "h1", "h2"),
    *("p", "a", "code", "dl", "div", "dt", "dd", "ul", "li", "span", "details", "summary", "figure"),
    *("figcaption", "table", "thead", "tbody", "tr", "th", "td"),
)


@dataclass
class Parsed(HTMLParser):
    """What a browser would make of a page."""

    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._inside, []).append(data)


def parsed(html: str) -> Parsed:
    """The page, once it is clear that it has no element, attribute or source but those that pages have."""
    page = Parsed()
    page.feed(html)
    page.close()
    assert {tag for tag, _ in page.elements} <= set(ELEMENTS)
    for tag, attributes in page.elements:
        known = {"class", "scope", "data-chart", "data-notice", "id", "lang", "charset", "http-equiv", "name"}
        assert attributes.keys() <= known | {"content", "type", "href"}, tag
        assert attributes.get("href", "#part-").startswith("#part-")
    assert not re.search(r"https?://|//[a-z]+\.", html), "nothing is named that could be asked"
    return page


def documents(page: Parsed) -> dict[str, object]:
    """The data in a page, by name."""
    names = [a["id"] for tag, a in page.elements if tag == "script" and "id" in a]
    return dict(zip(names, (json.loads(text) for text in page.texts["script"][: len(names)]), strict=True))


def test_hostile_names_are_text_everywhere() -> None:
    page = Page(HOSTILE, HOSTILE)
    page.heading(HOSTILE)
    page.text(HOSTILE)
    page.facts([(HOSTILE, HOSTILE)])
    page.notices([(HOSTILE, HOSTILE, True)])
    series = {HOSTILE: ([1.0], [0.5])}
    page.charts(
        [
            Curves(title=HOSTILE, views=[View(name=HOSTILE, x=HOSTILE, y=HOSTILE, series=series)]),
            Bars(title=HOSTILE, parts={HOSTILE: {HOSTILE: 1.0}}),
            HeatMap(title="", x="", rows_named=[HOSTILE], columns=[HOSTILE], values=[[math.nan]], label=""),
        ]
    )
    page.place("data", {HOSTILE: [HOSTILE, math.inf]})
    found = parsed(page.html())
    assert [tag for tag, _ in found.elements].count("script") == 3, "two of data, one that is run"
    shown = documents(found)["data"]
    assert shown == {HOSTILE.replace("\u202e", " ").replace("\u2028", " "): [next(iter(shown)), None]}  # type: ignore[call-overload]
    assert "<" not in "".join(found.texts["script"][:2])


def test_the_policy_names_the_one_script_and_the_one_style() -> None:
    page = parsed(Page("a").html())
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        digest = base64.b64encode(hashlib.sha256(page.texts[tag][-1].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


@pytest.mark.parametrize("path", [*SCRIPTS, SCRIPT], ids=lambda path: path.name)
def test_scripts_make_no_markup_and_ask_nobody(path: Path) -> None:
    script = path.read_text()
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|fetch\(|XMLHttp|import\(|src="
    )
    assert not re.search(forbidden, script)
    assert "</script" not in script


def test_the_style_asks_nobody() -> None:
    assert not re.search(r"url\(|@import|</style", (HERE / "page.css").read_text())


def test_every_picture_has_its_numbers_as_a_table() -> None:
    page = Page("a")
    views = [View(name="v", x="round", y="accuracy", series={"run": ([1, 2], [0.25, None])}, percent=True)]
    heat = HeatMap(
        title="h",
        x="round",
        rows_named=["fc"],
        columns=["1"],
        values=[[2.5]],
        label="xi",
        marked=[0],
        mark="S_svr",
    )
    page.charts([Curves(title="c", views=views), Bars(title="b", parts={"run": {"model": 1234.0}}), heat])
    cells = parsed(page.html()).texts["td"]
    for number in ("0.25", "-", "1,234", "fc (S_svr)", "2.5"):
        assert number in cells
