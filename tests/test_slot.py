"""Clients that are all started alike: each takes a free place, and a killed one gets its own back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from common.errors import StateError
from fedclient.store.state_slot import first_free_slot
from tests.killpoint import trap
from tests.processes import Federation
from tests.test_cli import invoke


def test_each_takes_the_first_place_that_is_free(tmp_path: Path) -> None:
    with first_free_slot(tmp_path) as (first, _):
        with first_free_slot(tmp_path) as (second, _), first_free_slot(tmp_path) as (third, _):
            assert (first, second, third) == ("client-1", "client-2", "client-3")
        with first_free_slot(tmp_path) as (again, _):
            assert again == "client-2"


def test_a_root_that_cannot_be_written_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot be written"), first_free_slot(tmp_path / "file"):
        pass


def test_a_root_excludes_a_name(tmp_path: Path) -> None:
    result = invoke("fedclient", "run", "--state-root", str(tmp_path), "--name", "a")
    assert result.exit_code == 2
    assert "leave out --name" in result.output


def test_a_killed_client_takes_its_own_place_again(federation: Federation) -> None:
    address = federation.server("--num-clients", "2", "--rounds", "3")
    arguments = ("fedclient", "run", "--server", address, "--state-root", "places")
    federation.start("one", *arguments, through=trap("kill", "before training", 2))
    federation.start("two", *arguments)
    federation.wait_for_death("one")
    (name,) = re.findall(r"joining \S+ as (client-[12])", federation.log("one"))
    federation.start("again", *arguments)
    assert federation.wait_for("again", r"joining \S+ as (\S+)") == name
    federation.finish()
    assert sorted(path.name for path in (federation.folder / "places").iterdir()) == ["client-1", "client-2"]


def test_health_answers_by_its_exit_code(federation: Federation) -> None:
    address = federation.server("--num-clients", "2")
    federation.wait_for("server", "waiting for clients")
    healthy = invoke("fedserver", "health", "--server", address)
    assert (healthy.exit_code, healthy.output) == (0, "serving\n")
    federation.kill("server")
    gone = invoke("fedserver", "health", "--server", address)
    assert gone.exit_code == 1
    assert gone.output.startswith(f"Error: no server answers at {address}: UNAVAILABLE")
