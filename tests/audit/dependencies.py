"""Known vulnerabilities of the pinned dependencies, as pip-audit's service tells them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from common.errors import UnavailableError
from common.json_files import has_form

TIMEOUT_S = 10
_REPORT = {"dependencies": [{"name": str, "version": (str, ...), "vulns": ([{"id": str}], ...)}]}


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
        found: Any = json.loads(report)
    except ValueError:
        found = None
    if not has_form(found, _REPORT):
        raise UnavailableError("the vulnerability service cannot be reached; dependencies were not checked")
    checked = [each for each in found["dependencies"] if "vulns" in each]
    if not checked:
        count = len(found["dependencies"])
        raise UnavailableError(
            f"the vulnerability service cannot be reached; {count} dependencies were not checked"
        )
    return [f"{each['name']} {each['version']}: {v['id']}" for each in checked for v in each["vulns"]]
