"""The documentation site as it was built: whole, complete, and asking nothing of another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import click
import pytest

from common.errors import ExitCode
from common.records import document
from fedlab.documents import events
from tests.test_cli import PROGRAMS

pytestmark = pytest.mark.site
ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"
PAGES = sorted(SITE.rglob("*.html"))
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
"""Where a page makes a browser fetch something; of links only those that are part of the page do."""
LINKS_IN_A_PAGE = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload"}


class Page(HTMLParser):
    """What a page loads, links to and can be linked at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the attributes that matter."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag in LOADING and LOADING[tag] in found:
            self.loads.append(found[LOADING[tag]])
        if tag == "link" and LINKS_IN_A_PAGE & set(found.get("rel", "").split()):
            self.loads.append(found["href"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])


@cache
def read(path: Path) -> Page:
    """A page, once."""
    return Page(path)


@cache
def text(name: str) -> str:
    """What a reader sees of a page, in one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", (SITE / name).read_text())).split())


def is_elsewhere(address: str) -> bool:
    """Whether an address leads to another host."""
    return re.match(r"(https?:)?//", address) is not None


def test_there_is_a_page_for_every_document() -> None:
    documents = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.rst")]
    expected = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in documents}
    assert expected <= {path.relative_to(SITE) for path in PAGES}


def test_every_page_is_headed_as_its_document() -> None:
    for source in (ROOT / "docs").rglob("*.md"):
        heading = re.match(r"# (.+)\n", source.read_text())
        if heading:
            page = (SITE / source.relative_to(ROOT / "docs").with_suffix(".html")).read_text()
            assert heading[1] in [unescape(each) for each in re.findall(r"<h1>(.*?)<a", page)], source


def test_no_page_asks_another_host_for_anything() -> None:
    assert [(page, each) for page in PAGES for each in read(page).loads if is_elsewhere(each)] == []
    styles = [
        path for path in SITE.rglob("*.css") if re.search(r"(url\(|@import)\W*(https?:)?//", path.read_text())
    ]
    assert styles == []


def test_every_link_inside_the_site_leads_somewhere() -> None:
    assert list(_broken()) == []


def _broken() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for link in read(page).links:
            path, _, anchor = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if is_elsewhere(link) or link.startswith("mailto:"):
                continue
            if not target.exists() or (anchor and anchor not in read(target).anchors):
                yield str(page.relative_to(SITE)), link


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _commands(inner, f"{path} {name}")


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_flag_of_every_command_is_in_the_reference(program: str) -> None:
    anchors = read(SITE / "reference" / f"{program}.html").anchors
    for path, command in _commands(PROGRAMS[program], program):
        slug = path.replace(" ", "-")
        assert slug in anchors
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for name in (*parameter.opts, *parameter.secondary_opts):
                    assert f"cmdoption-{slug}-{name.lstrip('-')}" in anchors, f"{path} {name}"


def test_every_file_and_key_of_a_run_directory_is_in_the_reference() -> None:
    page = text("run-directory.html")
    for entry in (*document.RUN_DIRECTORY, *document.STATE_DIRECTORY):
        assert entry.name in page
        for field in fields(entry.record) if entry.record is not None else ():
            assert field.metadata.get("rest") or field.name in page, f"{entry.name}: {field.name}"


def test_every_event_and_exit_code_is_in_the_reference() -> None:
    for package in events.PACKAGES:
        for kind in events.events_of(package):
            assert kind.kind_of() in text("events.html")
    rows = re.findall(r"<tr[^>]*><td[^>]*><p>(\d+)</p>", (SITE / "exit-codes.html").read_text())
    assert {int(code) for code in rows} == {code.value for code in ExitCode}


def test_formulas_and_pictures_are_part_of_the_page_and_take_its_colours() -> None:
    method = (SITE / "explanation" / "method.html").read_text()
    assert method.count('<svg role="img"') > 20
    assert 'class="fedpvr-picture"' in method
    assert ".fedpvr-picture {" not in method, "the page says whether it is light or dark, not the picture"
