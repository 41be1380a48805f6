"""The reference is complete: every event, exit code and metric that the code has is on its page."""

from __future__ import annotations

import ast
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from common import commandline, errors
from common.errors import ExitCode
from common.events import Event
from common.metrics.choice import BUILT_IN
from fedlab.documents import events, exit_codes, metrics, rooms
from tests.test_architecture import FILES
from tests.test_architecture import tree as parsed
from tests.test_cli import PROGRAMS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def read(name: str) -> str:
    """A document as it is committed."""
    return (DOCS / name).read_text()


def test_the_documents_are_those_that_the_code_makes() -> None:
    assert read("events.md") == events.document(), "run make docs"
    assert read("exit-codes.md") == exit_codes.document(), "run make docs"
    assert read("pictures/rooms.svg") == rooms.picture(), "run make docs"
    page = read("reference/metrics.md")
    assert page == metrics.rewritten(page), "run make docs"


def declared_events() -> Iterator[str]:
    """Names of all classes in the code that are events, wherever they are, without importing anything."""
    bases = {"Event", "Trouble"}
    for path in mentioning("Event", "Trouble"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and bases & {ast.unparse(base) for base in node.bases}:
                yield f"{path.parts[0]}.{node.name}"


def mentioning(*words: str) -> Iterator[Path]:
    """Files of the code with one of these words in them: only they need be parsed."""
    for path in FILES:
        text = (ROOT / path).read_text()
        if any(word in text for word in words):
            yield path


def test_every_event_is_documented_with_all_its_fields() -> None:
    page = read("events.md")
    documented = {
        f"{package.__name__}.{kind.__name__}": kind
        for package in events.PACKAGES
        for kind in events.events_of(package)
    }
    assert documented.keys() == set(declared_events())
    for kind in documented.values():
        sections = re.findall(rf"^### {kind.kind_of()}\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
        own = {field.name for field in fields(kind)} - {field.name for field in fields(Event)}
        assert any(all(f"`{name}`" in section for name in own) for section in sections), kind


def test_every_exit_code_has_a_meaning_for_commands_that_exist() -> None:
    assert {row.code for row in exit_codes.EXITS} == set(ExitCode)
    for row in exit_codes.EXITS:
        for command in row.command.split(", ") if row.command != exit_codes.ALL else ():
            program, *path = command.split(" --")[0].split()
            found: click.Command = PROGRAMS[program]
            for name in path:
                found = found.commands[name] if isinstance(found, click.Group) else found


def test_no_number_but_an_exit_code_ends_a_command_badly() -> None:
    raised = {
        ast.unparse(node)
        for path in mentioning("SystemExit", "sys.exit")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("SystemExit", "sys.exit")
        for argument in node.args
        if any(isinstance(each, ast.Constant) and each.value not in (0, None) for each in ast.walk(argument))
    }
    assert raised == set()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    tree = [kind for kind in kinds if issubclass(kind, errors.FedError)]
    assert all(isinstance(kind.exit_code, ExitCode) for kind in tree)


def test_ctrl_c_ends_any_command_with_130() -> None:
    @click.group(cls=commandline.Group)
    def main() -> None:
        """A program."""

    @main.command()
    def wait() -> None:
        """A command that somebody has enough of."""
        os.kill(os.getpid(), signal.SIGINT)

    assert CliRunner().invoke(main, ["wait"]).exit_code == ExitCode.INTERRUPTED


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_metric_is_in_the_table(name: str) -> None:
    assert f"| `{name}` |" in read("reference/metrics.md")
