"""The documents are true: their commands exist and their figures come from what they name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.test_cli import PROGRAMS

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINES = [
    (document.name, line.strip())
    for document in DOCUMENTS
    for line in document.read_text().splitlines()
    if re.match(r"    (fedserver|fedclient|fedlab|fedwire|make) ", line)
]


@pytest.mark.parametrize(("document", "line"), LINES)
def test_every_command_in_the_documents_exists_with_these_flags(
    document: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run.fedwire", "b.fedwire", "run.pcap", "task.toml"):
        (tmp_path / name).touch()
    (tmp_path / "runs" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(line, comments=True)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
        return
    command: click.Command = PROGRAMS[program]
    context = click.Context(command)
    while isinstance(command, click.Group):
        name, command, arguments = command.resolve_command(context, list(arguments))  # type: ignore[assignment]
        assert command is not None, f"{document}: no command {name}"
    # Parses without running; raises for a flag that does not exist or a value that does not fit.
    command.make_context(
        command.name, list(arguments), auto_envvar_prefix=None, help_option_names=["-h", "--help"]
    )


def test_the_documents_have_commands() -> None:
    assert len(LINES) >= 10


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for program, group in PROGRAMS.items():
        for name in group.commands:
            assert f"{program} {name}" in readme or f"make {name}" in readme, f"{program} {name}"


def test_paths_in_the_readme_exist() -> None:
    table = re.findall(r"^\| `([a-z/0-9._]+)`", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(table) >= 6
    assert [path for path in table if not (ROOT / path).exists()] == []


def test_the_five_lines_of_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        re.search(r"```python\n(import fedlab\n.*?)```", (ROOT / name).read_text(), re.DOTALL)[1]  # type: ignore[index]
        for name in ("README.md", "docs/python.md")
    }
    (lines,) = found
    assert len([line for line in lines.splitlines() if line]) == 5
    monkeypatch.chdir(tmp_path)
    exec(compile(lines, "README.md", "exec"), {})
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_the_changelog_has_an_unreleased_section_or_the_current_version() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## Unreleased" in changelog or f"## {version[1]}" in changelog
