"""The audit finds planted secrets, none of ours, and says when it could not ask about dependencies."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from common.errors import UnavailableError
from tests.audit.dependencies import lines, vulnerabilities
from tests.audit.secrets import PATTERNS, secrets

ROOT = Path(__file__).parent.parent
PLANTED = {  # In two halves, so that this file has none in it.
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "AWS access key": "AKIA" + "ABCDEFGHIJKLMNOP",
    "GitHub token": "ghp_" + "a1" * 18,
    "GitLab token": "glpat-" + "a1" * 10,
    "Slack token": "xoxb-" + "1234567890" * 2,
    "Google key": "AIza" + "a1b2c" * 7,
    "package index token": "pypi-" + "a1b2c" * 10,
    "model hub token": "hf_" + "a1b2c" * 6,
    "JSON web token": "eyJ" + "a1b2c" * 2 + ".eyJ" + "a1b2c" * 2 + "." + "a1b2c" * 2,
    "password": "pass" + 'word = "correct-horse-battery"',
}


def _tree(folder: Path, content: str) -> Path:
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / "settings.py").write_text(f"first line\n{content}\n")
    subprocess.run(["git", "add", "settings.py"], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("kind", PATTERNS)
def test_a_planted_secret_is_found_and_not_repeated(kind: str, tmp_path: Path) -> None:
    (line,) = secrets(_tree(tmp_path, f"key {PLANTED[kind]}"))
    assert line == f"settings.py:2: looks like a {kind}"


def test_ordinary_words_are_no_secret(tmp_path: Path) -> None:
    assert secrets(_tree(tmp_path, "token = read_token()  # a private key is read from --key\n")) == []


def test_files_that_git_does_not_track_are_not_looked_at(tmp_path: Path) -> None:
    (_tree(tmp_path, "") / "private.pem").write_text(PLANTED["private key"])
    assert secrets(tmp_path) == []


def test_there_is_no_secret_in_this_tree(repository: None) -> None:
    assert secrets(ROOT) == []


def test_a_vulnerability_is_one_line() -> None:
    found = '{"name": "a", "version": "1", "vulns": [{"id": "X-1"}]}, {"name": "b", "skip_reason": "?"}'
    assert lines(f'{{"dependencies": [{found}]}}') == ["a 1: X-1"]


@pytest.mark.parametrize("report", ["", "{}", '{"dependencies": [{"name": "b", "skip_reason": "unknown"}]}'])
def test_a_service_that_was_not_reached_is_not_taken_for_good_news(report: str) -> None:
    with pytest.raises(UnavailableError, match="cannot be reached"):
        lines(report)


def test_an_audit_without_its_tool_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="pip-audit cannot be run"):
        vulnerabilities(str(tmp_path / "pip-audit"), ROOT / "requirements.txt")
