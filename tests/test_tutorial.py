"""The tutorial's commands as they stand there, in that order: whoever follows it gets what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.processes import Federation, lasting_address

DOCS = Path(__file__).parent.parent / "docs"
SET_UP = ["make venv", ". .venv/bin/activate"]
TO_SERVER = ("fedclient run", "fedclient check")


class Reader:
    """Somebody who does what a page says, with a terminal for everything that keeps running."""

    def __init__(self, machine: Federation) -> None:
        self._machine = machine
        self._address = lasting_address()
        self._running: dict[str, str] = {}
        self._number = 0

    def follow(self, page: str) -> None:
        """Saves the files that a page shows, and gives its commands."""
        for before, language, body in re.findall(r"([^\n]*)\n\n```(\w+)\n(.*?)^```", page, re.M | re.S):
            saved = re.search(r"[Ss]ave this as `([\w.]+)`", before)
            if saved:
                (self._machine.folder / saved[1]).write_text(body)
            elif language == "python":
                self._python("-c", body)
            elif language == "sh":
                for line in body.splitlines():
                    self.give(line)
        self._wait()

    def give(self, line: str) -> None:
        """Types a command; one that ends by itself is waited for, and so is the run before the next one."""
        program, *words = shlex.split(line)
        if line in SET_UP:
            return
        if program == "kill":
            self._kill_client(re.findall(r"--name ([\w-]+)", line)[0])
        elif program == "python":
            self._python(*words)
        elif line.startswith("fedserver run"):
            self._wait()
            self._start("server", program, *words, "--listen", self._address)
            self._machine.wait_for(self._running["server"], "listening")
        elif line.startswith("fedclient run"):
            self._start(words[words.index("--name") + 1], program, *words, "--server", self._address)
        else:
            if not line.startswith(TO_SERVER):
                self._wait()
            to_server = ("--server", self._address) if line.startswith(TO_SERVER) else ()
            self._start("", program, *words, *to_server)
            self._end_well("")

    def _start(self, role: str, *command: str) -> None:
        self._number += 1
        self._running[role] = f"terminal-{self._number}"
        self._machine.start(self._running[role], *command)

    def _end_well(self, role: str) -> None:
        name = self._running.pop(role)
        assert self._machine.exit_code(name) == 0, self._machine.log(name)

    def _wait(self) -> None:
        for role in list(self._running):
            self._end_well(role)

    def _kill_client(self, client: str) -> None:
        """As a person would, in the middle of a run."""
        self._machine.wait_for(self._running["server"], r"round 2/")
        self._machine.kill(self._running.pop(client))

    def _python(self, *arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], cwd=self._machine.folder, check=True, timeout=90)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Federation]:
    """An empty folder, with nothing running."""
    with closing(Federation(tmp_path)) as federation:
        yield federation


@pytest.mark.slow
def test_the_tutorial_ends_in_a_model_and_a_page(machine: Federation) -> None:
    Reader(machine).follow((DOCS / "tutorial" / "first-federation.md").read_text())
    made = ("runs/first/model.safetensors", "runs/second/model.safetensors", "report.html", "compare.html")
    assert [name for name in made if not (machine.folder / name).exists()] == []


@pytest.mark.slow
def test_its_second_half_ends_in_a_model_of_pictures(machine: Federation) -> None:
    Reader(machine).follow((DOCS / "tutorial" / "own-data.md").read_text())
    assert (machine.folder / "runs/shapes/model.safetensors").exists()
    assert (machine.folder / "site.html").exists()


@pytest.mark.slow
def test_a_model_and_data_of_ones_own_are_two_functions(machine: Federation) -> None:
    page = (DOCS / "how-to" / "own-model-and-data.md").read_text()
    module = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S))
    (machine.folder / "mymodule.py").write_text(module)
    reader = Reader(machine)
    for line in re.findall(r"^    (fed\w+ run .*mymodule.*)$", page, re.M):
        reader.give(line)
    reader.give("fedlab card runs/own/model.safetensors")
