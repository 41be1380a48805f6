"""Fixtures: a directory of processes, and a plug-in directory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.processes import Federation
from tests.zygote import end, root

ROOT = Path(__file__).parent.parent

gc.disable()  # Until all tests are collected: what is imported stays.

torch.set_num_threads(1)
# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them are about.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The same examples every time, and a slow one proves nothing. The profile "thorough", which the long tests
# have, makes more of them, and "exploring" makes others.
CALM = settings(
    deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("calm", CALM)
settings.register_profile("thorough", CALM, max_examples=200)
settings.register_profile("exploring", CALM, max_examples=100, derandomize=False)
settings.load_profile("calm")


def pytest_configure() -> None:
    """Before there are workers, which have the same root of all processes then."""
    root()


def pytest_unconfigure() -> None:
    """After all workers have ended."""
    end()


def pytest_collection_finish() -> None:
    """What is imported by now is no garbage: no collection during the tests looks at it again."""
    gc.enable()
    gc.freeze()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the caller's reaches a test."""
    for name in os.environ:
        if name.startswith(("FEDSERVER_", "FEDCLIENT_", "FEDPVR_")):
            monkeypatch.delenv(name)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """Real processes, all ended after the test."""
    federation = Federation(tmp_path)
    yield federation
    federation.close()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For whoever asks git, this tree as it is now is the only commit: it need not be a clone."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "repository"))
    monkeypatch.setenv("GIT_WORK_TREE", str(ROOT))
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "the tree as it is"]):
        subprocess.run(["git", *words], cwd=ROOT, check=True)
