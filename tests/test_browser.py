"""The dashboard in a real browser. `make test-browser` installs what this needs and runs it."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common import json_files
from common.events import Trouble, unheard
from common.live.record import LIVE, LiveRecord
from common.records.run import CONFIG, RunRecord
from fedserver.live.event_log import EventLog
from tests.long_run import long_run
from tests.processes import Federation

pytestmark = pytest.mark.browser
AXE = Path(__file__).parent.parent / ".venv" / "axe-core" / "package" / "axe.min.js"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
TABS = ("overview", "clients", "traffic", "drift", "data", "log")
SITES = ("aachen", "berlin", "coimbra", "delft", "essen")
NAMED_S = 2.0
"""A client that is gone is named within this time."""
HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
Page = Any
"""Playwright is not among the pins, so nobody else can import its types."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser of this machine."""
    from playwright.sync_api import sync_playwright

    path = next(found for name in CHROMIUM if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Window:
    """A page that remembers what it asked for and complained about."""

    def __init__(self, chromium: Any, **settings: Any) -> None:
        self.page: Page = chromium.new_context(**settings).new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))

    def open(self, url: str, tab: str = "overview") -> Page:
        """A tab of the dashboard, once it has heard of the runs."""
        self.page.goto(f"{url}#{tab}")
        self.page.reload()
        self.expect("#link").to_have_text("live")
        self.expect("#subtitle").not_to_have_text("Connecting ...")
        return self.page

    def expect(self, selector: str, **options: Any) -> Any:
        """What is waited for."""
        from playwright.sync_api import expect

        return expect(self.page.locator(selector, **options))


def dashboard(federation: Federation, *run_dirs: Path) -> str:
    """The address of a dashboard of these runs."""
    paths = map(str, run_dirs)
    federation.start("dashboard", "fedserver", "dashboard", *paths, "--listen", "127.0.0.1:0")
    return federation.wait_for("dashboard", r"dashboard on (\S+)")


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A run with more of everything than a page shows."""
    return long_run(tmp_path / "long", rounds=120, clients=30)


def test_a_federation_of_five_is_followed_and_who_is_gone_is_named(
    federation: Federation, chromium: Any
) -> None:
    flags = "--num-clients 5 --rounds 3000 --alpha 0.1 --model mlp --local-steps 2 --dashboard 127.0.0.1:0"
    federation.server(*flags.split())
    url = federation.wait_for("server", r"dashboard on (\S+)")
    window = Window(chromium, color_scheme="light", viewport={"width": 1280, "height": 900})
    page = window.open(url)
    window.expect("#doing").to_have_text(re.compile("Preparing|Waiting for clients"))
    for name in SITES:
        federation.client(name)
    window.expect("#doing").to_have_text(re.compile(r"Round \d+ of 3000"), timeout=90_000)
    window.expect("#card-clients").to_have_text("5 of 5")
    window.expect("#chart-accuracy canvas").to_be_visible(timeout=90_000)
    window.expect("#card-left").to_have_text(re.compile(r"\d+ (s|min|h)"))
    page.get_by_text("bytes sent").click()
    window.expect("#caption-accuracy").to_have_text(re.compile(r"% after round \d+ and [\d.]+ [kM]B"))
    for tab, row in {
        "clients": "#client-rows tr",
        "traffic": "#tensor-rows tr",
        "drift": "#drift-rows tr",
        "data": "#class-rows tr",
        "log": "#log-lines li",
    }.items():
        page.click(f"#tab-{tab}")
        window.expect(row).not_to_have_count(0)
    page.click("#tab-clients")
    federation.processes["delft"].send_signal(signal.SIGKILL)
    gone = window.expect("#client-rows tr", has_text="delft")
    gone.to_have_class("absent", timeout=NAMED_S * 1000)
    window.expect("#announcer").to_have_text(re.compile("Not there: delft not (connected|heard of)"))
    page.select_option("#client-filter", "absent")
    window.expect("#client-rows tr").to_have_count(1)
    assert not window.complaints
    assert {asked.split("/")[2] for asked in window.asked} == {url.split("/")[2]}
    federation.wait_for_death("delft")
    federation.stop("server")
    window.expect("#link").to_have_text(re.compile("no connection since"))


def test_runs_are_shown_side_by_side(
    federation: Federation, chromium: Any, long: Path, tmp_path: Path
) -> None:
    other = long_run(tmp_path / "other", rounds=40, clients=3)
    window = Window(chromium)
    page = window.open(dashboard(federation, long, other))
    window.expect("#runs label").to_have_count(2)
    window.expect("#chart-accuracy .u-series").to_have_count(3)
    page.get_by_label(re.compile("^other")).check()
    window.expect("#title").to_have_text("other")
    window.expect("#card-clients").to_have_text("3 of 3")
    federation.stop("dashboard")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_view_has_a_serious_fault_for_those_who_see_or_move_differently(
    federation: Federation, chromium: Any, long: Path, scheme: str, width: int
) -> None:
    url = dashboard(federation, long)
    # The page forbids other scripts, as it should; the one that examines it is let in past that.
    window = Window(chromium, color_scheme=scheme, viewport={"width": width, "height": 844}, bypass_csp=True)
    for tab in TABS:
        page = window.open(url, tab)
        window.expect(f"#{tab}").to_be_visible()
        page.add_script_tag(path=str(AXE))
        found = page.evaluate("async () => (await axe.run()).violations")
        faults = [
            (fault["id"], [node["html"] for node in fault["nodes"]])
            for fault in found
            if fault["impact"] in ("serious", "critical")
        ]
        assert not faults, f"{tab}: {json.dumps(faults, indent=1)}"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{tab} is too wide"
    federation.stop("dashboard")


def test_names_from_elsewhere_are_text(federation: Federation, chromium: Any, long: Path) -> None:
    run = json_files.read(long / CONFIG, RunRecord)
    seats = (replace(run.clients[0], name=HOSTILE), *run.clients[1:])
    json_files.write(long / CONFIG, replace(run, clients=seats, class_names=(HOSTILE, *run.class_names[1:])))
    live = json_files.read(long / LIVE, LiveRecord)
    first = replace(live.clients[0], name=HOSTILE, state="left", reason=HOSTILE)
    json_files.write(long / LIVE, replace(live, model=HOSTILE, clients=(first, *live.clients[1:])))
    with EventLog(long, unheard) as log:
        log(Trouble(client=HOSTILE, reason=HOSTILE))
    window = Window(chromium)
    url = dashboard(federation, long)
    for tab in TABS:
        page = window.open(url, tab)
        window.expect(f"#{tab}").to_contain_text("onerror" if tab in ("clients", "data", "log") else "")
        assert page.evaluate("[window.hacked === undefined, document.images.length]") == [True, 1]
    assert not window.complaints
    federation.stop("dashboard")


def test_everything_is_reached_by_keyboard(federation: Federation, chromium: Any, long: Path) -> None:
    window = Window(chromium, color_scheme="light")
    page = window.open(dashboard(federation, long))
    page.keyboard.press("Tab")
    window.expect(".skip").to_be_focused()
    page.focus("#tab-overview")
    for tab in (*TABS[1:], TABS[0]):
        page.keyboard.press("ArrowRight")
        window.expect(f"#tab-{tab}").to_be_focused()
        window.expect(f"#{tab}").to_be_visible()
    page.keyboard.press("End")
    window.expect("#log").to_be_visible()
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.type("round 120")
    page.focus("#theme")
    page.keyboard.press("Enter")
    window.expect("html").to_have_attribute("data-theme", "dark")
    federation.stop("dashboard")


def test_nothing_jumps_when_data_come(federation: Federation, chromium: Any, long: Path) -> None:
    window = Window(chromium, viewport={"width": 1280, "height": 900})
    window.page.add_init_script(
        "window.jumps = []; new PerformanceObserver((list) => { for (const jump of list.getEntries())"
        " window.jumps.push([jump.value, jump.sources.map((from) => from.node?.parentElement?.outerHTML)]);"
        " }).observe({ type: 'layout-shift', buffered: true });"
    )
    page = window.open(dashboard(federation, long))
    window.expect("#chart-accuracy canvas").to_be_visible()
    window.expect("#roll li").to_have_count(30)
    jumps = page.evaluate("window.jumps")
    assert sum(size for size, _ in jumps) < 0.02, jumps
    federation.stop("dashboard")
