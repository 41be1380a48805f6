"""The dashboard as a server of pages: what it says, to whom, and that it follows a run."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common.events import Trouble, unheard
from common.live.record import EVENTS, LIVE
from common.records.rounds import ROUNDS, read_rounds
from fedlab.simulation import simulate
from fedserver.cli import main
from fedserver.config import RunConfig
from fedserver.dashboard.assignment import Assignment
from fedserver.dashboard.history import MOST_POINTS, RoundHistory, thinned
from fedserver.dashboard.run_feed import RunFeed
from fedserver.live.event_log import EventLog
from fedserver.metrics.family import CONTENT_TYPE
from tests.long_run import long_run
from tests.processes import Federation, wait_until

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is over."""
    run = tmp_path_factory.mktemp("dashboard") / "run"
    simulate(RunConfig(num_clients=3, rounds=3, local_steps=1, model="mlp"), run, unheard)
    return run


class Browser:
    """Asks a dashboard as a browser would."""

    def __init__(self, url: str) -> None:
        self.host = url.split("/")[2]
        self.headers: dict[str, str] = {}

    def get(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, self.headers | named)
        reply = connection.getresponse()
        answer = Answer(reply.status, dict(reply.getheaders()), reply.read())
        connection.close()
        return answer

    def runs(self) -> list[dict[str, Any]]:
        """What a page is told when it opens."""
        found: list[dict[str, Any]] = json.loads(self.get("/runs.json").body)
        return found


class Answer:
    """To a request."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body


@pytest.fixture
def browser(federation: Federation, simulated: Path) -> Iterator[Browser]:
    """Of the dashboard of a run that is over."""
    federation.start("dashboard", "fedserver", "dashboard", str(simulated), "--listen", "127.0.0.1:0")
    yield Browser(federation.wait_for("dashboard", r"dashboard on (\S+)"))
    federation.stop("dashboard")


def test_every_answer_keeps_a_browser_to_what_is_ours(browser: Browser) -> None:
    page = browser.get("/")
    assert page.status == 200
    assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    files = [part.split(b'"')[0].decode() for part in page.body.split(b'="') if part.startswith(b"/static/")]
    assert {path.rpartition(".")[2] for path in files} == {"js", "css", "svg"}
    for path in files:
        answer = browser.get(path)
        assert answer.status == 200
        assert browser.get(path, if_none_match=answer.headers["etag"]).status == 304
    assert browser.get("/nothing").status == 404
    assert browser.get("/", method="POST").status == 405
    for path in ("/", "/nothing", "/runs.json"):
        assert "content-security-policy" in browser.get(path).headers


def test_nothing_of_the_page_is_asked_for_elsewhere() -> None:
    static = ROOT / "fedserver" / "dashboard" / "static"
    for path in [*static.glob("*.js"), *static.glob("*.css"), static / "index.html"]:
        text = path.read_text()
        for scheme in ("https://", "http://", "innerHTML", "insertAdjacentHTML", "eval(", "document.write"):
            assert scheme not in text, f"{path.name} has {scheme}"
    assert (static / "vendor" / "uplot.LICENSE").read_text().startswith("The MIT License")


def test_a_page_of_another_name_does_not_look(browser: Browser) -> None:
    answer = browser.get("/runs.json", Host="evil.example")
    assert answer.status == 403
    assert answer.body == b"this dashboard is for this machine; ask for localhost, not 'evil.example'\n"
    for host in ("localhost", "127.0.0.1:8080", "[::1]:8080"):
        assert browser.get("/runs.json", Host=host).status == 200


def test_a_page_that_opens_is_told_everything(browser: Browser, simulated: Path) -> None:
    (run,) = browser.runs()
    assert run["finished"]
    assert run["whole"]
    assert [point["round"] for point in run["points"]] == [1, 2, 3]
    records = read_rounds(simulated)
    assert run["points"][-1]["total"] == sum(record.bytes.total for record in records)
    assert run["points"][-1]["fedavg"] < run["points"][-1]["total"] < run["points"][-1]["scaffold"]
    assert run["head"]["svr_layers"] == ["classifier"]
    assert len(run["layers"]) == len(run["points"][0]["drift"])
    assert {each["took_part"] for each in run["standings"]} == {3}
    assert sum(row["down"] + row["up"] for row in run["bytes"]["tensors"]) == run["points"][-1]["total"]
    assert run["events"][-1]["event"] == "results_ready"


def test_the_dashboard_serves_the_metrics_of_its_runs_too(browser: Browser, simulated: Path) -> None:
    reply = browser.get("/metrics")
    assert (reply.status, reply.headers["content-type"]) == (200, CONTENT_TYPE)
    accuracy = f'fedpvr_accuracy{{run="{json.loads((simulated / "config.json").read_text())["run_id"]}"}} '
    assert f"{accuracy}{read_rounds(simulated)[-1].accuracy}\n" in reply.body.decode()


def test_an_open_page_is_told_what_is_new(federation: Federation, simulated: Path, tmp_path: Path) -> None:
    run = tmp_path / "growing"
    run.mkdir()
    for name in ("config.json", ROUNDS, LIVE, EVENTS):
        (run / name).write_bytes((simulated / name).read_bytes())
    lines = (run / ROUNDS).read_bytes().splitlines(keepends=True)
    (run / ROUNDS).write_bytes(lines[0])
    federation.start("dashboard", "fedserver", "dashboard", str(run), "--listen", "127.0.0.1:0")
    page = http.client.HTTPConnection(Browser(federation.wait_for("dashboard", r"on (\S+)")).host, timeout=60)
    page.request("GET", "/news")
    stream = page.getresponse()

    def next_news() -> dict[str, Any]:
        while not (line := stream.readline()).startswith(b"data: {"):
            assert line, "the stream goes on"
        found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        return found

    assert [point["round"] for point in next_news()["points"]] == [1]
    with (run / ROUNDS).open("ab") as file:
        file.write(lines[1])
    news = next_news()
    assert [point["round"] for point in news["points"]] == [2]
    assert not news["whole"]
    with EventLog(run, unheard) as log:
        log(Trouble(reason="<script>alert(1)</script>"))
    news = next_news()
    assert [event["text"] for event in news["events"]] == ["<script>alert(1)</script>"]
    assert news["points"] == []
    (run / LIVE).write_text("{")
    assert "live.json: expected JSON" in next_news()["trouble"]
    page.close()
    federation.stop("dashboard")


def test_the_server_starts_and_ends_its_dashboard(federation: Federation) -> None:
    federation.server("--num-clients", "2", "--model", "mlp", "--dashboard", "127.0.0.1:0")
    browser = Browser(federation.wait_for("server", r"dashboard on (\S+)"))
    run = wait_until(lambda: next((r for r in browser.runs() if r.get("live")), None), "live.json is there")
    assert run is not None
    assert run["alive"]
    assert run["live"]["phase"] in ("preparing", "waiting")
    federation.stop("server")
    with pytest.raises(OSError, match="refused"):
        browser.runs()


def test_a_dashboard_ends_with_a_server_that_is_killed(federation: Federation) -> None:
    federation.server("--num-clients", "2", "--model", "mlp", "--dashboard", "127.0.0.1:0")
    host, _, port = Browser(federation.wait_for("server", r"dashboard on (\S+)")).host.partition(":")
    federation.kill("server")

    def refused() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) != 0

    wait_until(refused, "nobody listens")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--listen", "0.0.0.0:0"], "nothing is encrypted; give --certs DIR"),
        (["--listen", "0.0.0.0:0", "--insecure"], "everybody could look; give --tokens DIR"),
        (["--listen", "8080"], "--listen must be HOST:PORT"),
        (["--listen", "203.0.113.7:0", "--insecure", "--tokens", "t"], "cannot listen there"),
    ],
)
def test_a_dashboard_for_others_needs_a_key(simulated: Path, flags: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["dashboard", str(simulated), *flags])
    assert result.exit_code == 2
    assert message in result.output


def test_only_run_directories_are_shown(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["dashboard", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not a run directory" in result.output


def test_an_operators_token_opens_the_door_and_a_clients_does_not(
    federation: Federation, simulated: Path
) -> None:
    folder = federation.folder / "tokens"
    for words in (["alice", "--operator"], ["clinic-a"]):
        issued = CliRunner().invoke(main, ["tokens", "issue", *words, "--dir", str(folder)])
        assert issued.exit_code == 0, issued.output
    tokens = {name: (folder / f"{name}.token").read_text().strip() for name in ("alice", "clinic-a")}
    flags = ("--listen", "0.0.0.0:0", "--insecure", "--tokens", str(folder))
    federation.start("dashboard", "fedserver", "dashboard", str(simulated), *flags)
    browser = Browser(federation.wait_for("dashboard", r"dashboard on (\S+)").replace("0.0.0.0", "127.0.0.1"))
    assert browser.get("/runs.json").status == 401
    asked = browser.get("/", Accept="text/html")
    assert asked.status == 401
    assert b"Operator&#x27;s token" in asked.body or b"Operator's token" in asked.body
    for wrong in ("", "alice:nonsense", tokens["clinic-a"]):
        assert browser.get("/login", "POST", f"token={wrong}").status == 401
    let_in = browser.get("/login", "POST", f"token={tokens['alice'].replace(':', '%3A')}")
    assert let_in.status == 303
    cookie = let_in.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert browser.get("/runs.json", Cookie=cookie.partition(";")[0]).status == 200
    assert browser.get("/runs.json", Authorization=f"Bearer {tokens['alice']}").status == 200
    assert browser.get("/runs.json", Authorization=f"Bearer {tokens['clinic-a']}").status == 401
    assert CliRunner().invoke(main, ["tokens", "revoke", "alice", "--dir", str(folder)]).exit_code == 0
    assert browser.get("/runs.json", Cookie=cookie.partition(";")[0]).status == 401
    federation.stop("dashboard")


def test_an_operators_certificate_opens_the_door_and_a_clients_does_not(
    federation: Federation, simulated: Path
) -> None:
    folder = federation.folder / "certs"
    for words in (["init", "--host", "localhost"], ["issue", "clinic-a"], ["issue", "--operator", "alice"]):
        made = CliRunner().invoke(main, ["certs", *words, "--dir", str(folder)])
        assert made.exit_code == 0, made.output
    flags = ("--listen", "0.0.0.0:0", "--certs", str(folder))
    federation.start("dashboard", "fedserver", "dashboard", str(simulated), *flags)
    port = int(federation.wait_for("dashboard", r"dashboard on https://0\.0\.0\.0:(\d+)/"))

    def status(name: str | None) -> int:
        tls = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        if name is not None:
            tls.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
        connection = http.client.HTTPSConnection("localhost", port, context=tls, timeout=60)
        connection.request("GET", "/runs.json")
        found = connection.getresponse().status
        connection.close()
        return found

    assert status("alice") == 200
    assert status("clinic-a") == 403
    with pytest.raises((ssl.SSLError, ConnectionError)):
        status(None)
    assert CliRunner().invoke(main, ["certs", "revoke", "alice", "--dir", str(folder)]).exit_code == 0
    assert status("alice") == 403
    federation.stop("dashboard")


def test_a_long_history_is_thinned_and_its_sums_stay_right(tmp_path: Path) -> None:
    run = long_run(tmp_path / "run", rounds=420, clients=3)
    feed = RunFeed(0, run)
    feed.look()
    message = feed.whole()
    assert len(message.points) <= MOST_POINTS
    assert message.points[-1].round == 420
    assert message.points[-1].total == sum(record.bytes.total for record in read_rounds(run))
    assert len(thinned(list(message.points))) == len(message.points)
    assert sum(vars(message.down).values()) + sum(vars(message.up).values()) == message.points[-1].total
    first, second, third = message.standings or ()
    assert (first.took_part, first.missed, first.reason) == (210, 210, "no answer by the deadline")
    assert (second.took_part, second.uncounted, second.uncounted_reason) == (378, 42, "too large")
    assert (third.took_part, third.missed, third.uncounted) == (420, 0, 0)


def test_history_follows_a_run_that_goes_back(tmp_path: Path) -> None:
    run = long_run(tmp_path / "run", rounds=6, clients=2)
    feed = RunFeed(0, run)
    feed.look()
    lines = (run / ROUNDS).read_bytes().splitlines(keepends=True)
    (run / ROUNDS).write_bytes(b"".join(lines[:4]))
    message = feed.look()
    assert message is not None
    assert message.whole
    assert [point.round for point in message.points] == [1, 2, 3, 4]
    fresh = RoundHistory()
    assert fresh.points == {}


def test_an_assignment_of_this_machine_speaks_no_tls() -> None:
    assert not Assignment(run_dirs=("a",), address="127.0.0.1:0", certs="certs").encrypted
    assert Assignment(run_dirs=("a",), address="0.0.0.0:0", certs="certs").encrypted
