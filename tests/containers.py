"""Compose projects for tests, through the docker command alone; Compose v2 or v1, whichever is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WAIT_S = 240.0
IMAGE = "fedpvr-test"


def answers(*command: str) -> bool:
    """Whether a command is there and succeeds."""
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def run(*command: str, check: bool = True, **environment: str) -> str:
    """What a command prints."""
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=1200
    )
    assert not check or done.returncode == 0, (
        f"{' '.join(command)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    )
    return done.stdout


class Project:
    """A Compose project with volumes of its own."""

    def __init__(self, name: str, *overrides: str, profiles: str = "", **settings: str) -> None:
        self.name = f"fedpvr-test-{name}"
        self._settings = {"IMAGE": IMAGE, "GATHER": "1"} | settings
        v2 = os.environ.get("COMPOSE", "docker compose") == "docker compose"
        self._compose = (
            ["docker", "compose"] if v2 and answers("docker", "compose", "version") else ["docker-compose"]
        )
        for file in ("docker-compose.yml", *overrides):
            self._compose += ["-f", file]
        for profile in profiles.split():
            self._compose += ["--profile", profile]

    def compose(self, *arguments: str, check: bool = True) -> str:
        """Runs docker compose in this project."""
        return run(*self._compose, "-p", self.name, *arguments, check=check, **self._settings)

    def containers(self, service: str | None = None) -> list[str]:
        """Identifiers, stopped ones included."""
        filters = [f"label=com.docker.compose.project={self.name}"]
        if service is not None:
            filters.append(f"label=com.docker.compose.service={service}")
        listed = run("docker", "ps", "-aq", *(part for text in filters for part in ("--filter", text)))
        return listed.split()

    def server(self) -> str:
        """The server's container."""
        (container,) = self.containers("server")
        return container

    def inspect(self, service: str | None = None) -> list[dict[str, Any]]:
        """What the engine knows of the containers."""
        found: list[dict[str, Any]] = json.loads(run("docker", "inspect", *self.containers(service)))
        return found

    def log(self, service: str) -> str:
        """What all containers of a service have printed."""
        return "".join(run("docker", "logs", container) for container in self.containers(service))

    def wait_for(self, service: str, pattern: str) -> None:
        """Waits until a container of this service has printed a line."""
        deadline = time.monotonic() + WAIT_S
        while not re.search(pattern, self.log(service)):
            assert time.monotonic() < deadline, f"{service} never printed {pattern!r}:\n{self.log(service)}"
            time.sleep(0.2)

    def exit_codes(self) -> dict[str, int]:
        """Waits until every container has ended by itself."""
        deadline = time.monotonic() + WAIT_S
        while True:
            states = {container["Name"]: container["State"] for container in self.inspect()}
            if all(state["Status"] == "exited" for state in states.values()):
                return {name: state["ExitCode"] for name, state in states.items()}
            assert time.monotonic() < deadline, f"still running:\n{self.log('server')}\n{self.log('client')}"
            time.sleep(0.5)

    def results(self, to: Path) -> Path:
        """Copies the volume with the runs."""
        run("docker", "cp", f"{self.server()}:/runs", str(to))
        return to / "runs"

    def close(self) -> None:
        """Leaves nothing behind."""
        self.compose("down", "-v", "--remove-orphans", check=False)
