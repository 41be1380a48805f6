"""A choice of tests with the lowest and with the newest versions that pyproject.toml allows.

`python -m tests.ranges PYTHON [END] [--torch]`, which is `make test-ranges`. Each end has an environment of
its own, .venv-lowest and .venv-newest, made anew if what belongs into it has changed. torch, whose builds are
large, is the one of requirements.txt at both ends, unless --torch says that its range is meant too.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

from tests.test_installation import declared, pins

ROOT = Path(__file__).parent.parent
EXTRAS = "lab,wire"
TOOLS = ("pytest", "pytest-timeout", "hypothesis")
LARGE = ("torch", "torchvision")
COMPANIONS = ("pyparsing<3.3",)
"""The lowest matplotlib uses what later releases of it warn of; a warning would be a failure."""
TESTS = (
    *("test_federation", "test_wire", "test_records", "test_calls", "test_codecs", "test_capture"),
    *("test_fedwire", "test_certs", "test_cli", "test_init", "test_train"),
)


def lowest(requirement: Requirement) -> str:
    """The least version that is asked for, exactly."""
    (number,) = [each.version for each in requirement.specifier if each.operator == ">="]
    return f"=={number}"


def wanted(end: str, range_of_torch: bool) -> list[str]:
    """The requirements of one end."""
    found = [f"-e.[{EXTRAS}]", *(f"{name}=={pins()[name]}" for name in TOOLS)]
    asked = declared() | declared(*EXTRAS.split(","))
    if end == "lowest":
        found += [f"{name}{lowest(asked[name])}" for name in asked if name not in LARGE or range_of_torch]
        found += COMPANIONS
    if not range_of_torch:
        found += [f"{name}=={pins()[name]}" for name in LARGE]
    return found


def environment(python: str, end: str, requirements: list[str]) -> Path:
    """Its Python; made unless there is one with the same requirements."""
    folder = ROOT / f".venv-{end}"
    note, content = folder / "requirements.txt", "\n".join([python, *requirements])
    if not note.exists() or note.read_text() != content:
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--prefer-binary", *requirements], cwd=ROOT, check=True)
        note.write_text(content)
    return folder / "bin" / "python"


def versions(python: Path) -> str:
    """Python and what is installed there of what the package asks for."""
    listed = subprocess.run([python, "-m", "pip", "freeze"], check=True, stdout=subprocess.PIPE, text=True)
    names = declared() | declared(*EXTRAS.split(","))
    found = [line for line in listed.stdout.splitlines() if re.split("==| @", line)[0].lower() in names]
    release = subprocess.run([python, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return f"{release.strip()}, {', '.join(found)}"


def passes(python: Path) -> bool:
    """Runs the tests."""
    files = [f"tests/{name}.py" for name in TESTS]
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *files]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def main() -> None:
    """Runs the tests at each end; ends with 1 if any fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.ranges")
    parser.add_argument("python", help="the Python that environments are made with")
    parser.add_argument("ends", nargs="*", default=["lowest", "newest"], help="lowest, newest; both if none")
    parser.add_argument("--torch", action="store_true", help="the range of torch too")
    given = parser.parse_args()
    good = True
    for end in given.ends:
        python = environment(given.python, end, wanted(end, given.torch))
        print(f"the {end} versions: {versions(python)}", flush=True)
        good &= passes(python)
    sys.exit(not good)


if __name__ == "__main__":
    main()
