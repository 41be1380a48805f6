"""Fixtures: a directory of processes, and a plug-in directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.processes import Federation

torch.set_num_threads(1)
# Machines are noisy, and a slow example proves nothing.
settings.register_profile("noisy", deadline=None)
settings.load_profile("noisy")


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
