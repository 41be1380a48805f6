"""docs/consortium.md leads from nothing to a run with certificates: its commands as they stand there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.processes import Federation, lasting_address

PAGE = (Path(__file__).parent.parent / "docs" / "consortium.md").read_text()
COORDINATOR, SITES = "coordinator", ("clinic-a", "clinic-b", "clinic-c")
STEPS = re.findall(
    r"^\*\*(\d+)\. At (the coordinator|each site)\b.*?^    (fed\w+ [^\n]*)$", PAGE, re.M | re.S
)


def pictures(folder: Path, number: int) -> None:
    """Some of each class: those of one are brighter."""
    random = np.random.default_rng(number)
    for name, brightness in (("benign", 40), ("malignant", 160)):
        (folder / name).mkdir(parents=True)
        for k in range(10 + number):
            noise = random.integers(0, 90, (16, 16, 3)) + brightness
            Image.fromarray(noise.astype(np.uint8)).save(folder / name / f"{k}.png")


class Consortium:
    """A folder for each machine, and the page's commands given there."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._address = lasting_address()
        names = (COORDINATOR, *SITES)
        self.machines = {name: stack.enter_context(closing(Federation(folder / name))) for name in names}
        task, policy = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
        (self.folder(COORDINATOR) / "task.toml").write_text(task)
        for number, site in enumerate(SITES):
            pictures(self.folder(site) / "pictures", number)
            (self.folder(site) / "site.toml").write_text(self._here(policy))

    def _here(self, text: str) -> str:
        """With addresses of this machine."""
        text = text.replace("fl.example.org:50051", self._address).replace("0.0.0.0:50051", self._address)
        return text.replace("fl.example.org", "127.0.0.1")

    def folder(self, machine: str) -> Path:
        """Where its commands are given."""
        return self.machines[machine].folder

    def start(self, step: int, site: str = SITES[0]) -> tuple[Federation, str]:
        """Gives the command of a step, for a site where it names one."""
        number, where, line = STEPS[step - 1]
        assert int(number) == step
        machine = self.machines[COORDINATOR if where == "the coordinator" else site]
        program, *arguments = shlex.split(self._here(line).replace(SITES[0], site))
        machine.start(f"{number}-{site}", program, *arguments)
        return machine, f"{number}-{site}"

    def give(self, step: int, site: str = SITES[0]) -> str:
        """The same, until it has ended well; returns what it says."""
        machine, name = self.start(step, site)
        assert machine.exit_code(name) == 0, machine.log(name)
        return machine.log(name)


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Consortium]:
    """On this machine."""
    with ExitStack() as stack:
        yield Consortium(tmp_path, stack)


@pytest.mark.slow
def test_ten_commands_make_a_consortium(consortium: Consortium) -> None:
    assert len(STEPS) == 10
    consortium.give(1)
    central = consortium.folder(COORDINATOR)
    for site in SITES:
        asked = consortium.give(2, site)
        own = consortium.folder(site) / "certs"
        shutil.copy(own / f"{site}.csr", central)
        signed = consortium.give(3, site)
        assert re.findall(r"key ([0-9a-f:]{39})", asked) == re.findall(r"key ([0-9a-f:]{39})", signed)
        for name in (f"{site}.pem", "ca.pem"):
            shutil.copy(central / "certs" / name, own)
        assert not (central / "certs" / f"{site}.key").exists(), "keys stay where they were made"
    server, name = consortium.start(4)
    server.wait_for(name, "waiting for clients")
    assert "ready: 0 errors" in consortium.give(5)
    assert "resnet8" in consortium.give(7)
    clients = [consortium.start(6, site) for site in SITES]
    assert [machine.exit_code(client) for machine, client in clients] == [0, 0, 0]
    assert server.exit_code(name) == 0, server.log(name)
    assert "canary: go for all 3 clients" in server.log(name)
    rounds = [json.loads(line) for line in (central / "run" / "rounds.jsonl").read_text().splitlines()]
    for line in rounds:
        sites = line["sites"]
        assert sorted(sites["sites"]) == sorted(SITES)
        assert sites["worst"] in SITES
    assert (central / "run" / "best.safetensors").exists()
    card = consortium.give(8)
    assert all(re.search(rf"{site}\b.*\b5\b.*\b1-5\b", card) for site in SITES)
    assert "whole and as they were written; signed" in consortium.give(9)
    shutil.copy(central / "run" / "model.safetensors", consortium.folder(SITES[0]))
    assert re.search(r"federated: accuracy \d", consortium.give(10))
    page = (consortium.folder(SITES[0]) / "site.html").read_text()
    assert all(site in page for site in SITES)
