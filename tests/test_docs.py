"""The documents are true: their commands exist and their figures come from what they name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.test_cli import PROGRAMS

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = re.compile(r"^```sh\n(.*?)^```|((?:^    .*\n)+)", re.MULTILINE | re.DOTALL)
"""Where commands are shown: fenced as sh, or indented."""
LINES = [
    (str(document.relative_to(ROOT)), line.strip())
    for document in DOCUMENTS
    for block in BLOCKS.finditer(document.read_text())
    for line in block[0].splitlines()
    if re.match(r"( {4})?(fedserver|fedclient|fedlab|fedwire|make) ", line)
]
MENTIONS = [
    (str(document.relative_to(ROOT)), " ".join(mention.split()))
    for document in DOCUMENTS
    for mention in re.findall(r"`((?:fedserver|fedclient|fedlab|fedwire) [^`]+)`", document.read_text())
]
"""Commands inside a sentence, which may leave out what is not its subject."""


def resolved(program: str, arguments: list[str]) -> tuple[click.Command, list[str]]:
    """The command that words name, and what follows them."""
    command: click.Command = PROGRAMS[program]
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        found = command.get_command(click.Context(command), arguments[0])
        assert found is not None, f"no command {arguments[0]}"
        command, arguments = found, arguments[1:]
    return command, arguments


@pytest.mark.parametrize(("document", "line"), LINES)
def test_every_command_in_the_documents_exists_with_these_flags(
    document: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run.fedwire", "b.fedwire", "run.pcap", "task.toml", "small.toml"):
        (tmp_path / name).touch()
    (tmp_path / "runs" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(line, comments=True)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
        return
    command, arguments = resolved(program, arguments)
    # Parses without running; raises for a flag that does not exist or a value that does not fit.
    command.make_context(
        command.name, list(arguments), auto_envvar_prefix=None, help_option_names=["-h", "--help"]
    )


@pytest.mark.parametrize(("document", "mention"), sorted(set(MENTIONS)))
def test_every_command_in_a_sentence_exists_with_these_flags(document: str, mention: str) -> None:
    program, *words = mention.split()
    command, words = resolved(program, words)
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    assert {word for word in words if re.match(r"--?[a-z]", word)} <= known


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
