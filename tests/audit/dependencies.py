"""Known vulnerabilities of the pinned dependencies, as pip-audit's service tells them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from common.errors import UnavailableError
from common.records import form
from common.records.base import FormError

TIMEOUT_S = 10


@dataclass(frozen=True)
class Vulnerability:
    """One that is known."""

    id: str


@dataclass(frozen=True)
class Dependency:
    """A pinned package; without `vulns` it was not checked."""

    name: str
    version: str | None = None
    vulns: tuple[Vulnerability, ...] | None = None


@dataclass(frozen=True)
class Report:
    """What pip-audit prints."""

    dependencies: tuple[Dependency, ...]


def vulnerabilities(pip_audit: str, requirements: Path) -> list[str]:
    """One line each; raises an UnavailableError where nothing could be asked."""
    flags = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    command = [pip_audit, "--requirement", str(requirements), *flags, "--timeout", str(TIMEOUT_S)]
    try:
        return lines(subprocess.run(command, check=False, capture_output=True, text=True).stdout)
    except OSError as error:
        raise UnavailableError(f"pip-audit cannot be run: {error.strerror}") from error


def lines(report: str) -> list[str]:
    """What a report of pip-audit says. A service that knows no dependency at all was not reached."""
    try:
        found = form.read(Report, json.loads(report)).dependencies
    except (ValueError, FormError) as error:
        raise UnavailableError(
            "the vulnerability service cannot be reached; dependencies were not checked"
        ) from error
    checked = [each for each in found if each.vulns is not None]
    if not checked:
        raise UnavailableError(
            f"the vulnerability service cannot be reached; {len(found)} dependencies were not checked"
        )
    return [f"{each.name} {each.version}: {known.id}" for each in checked for known in each.vulns or ()]
