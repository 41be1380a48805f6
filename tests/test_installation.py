"""What an installation brings: declared libraries, extras that are named when missing, versions, shells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from common.installation import extras
from tests.test_architecture import FILES, imports
from tests.test_cli import PROGRAMS, invoke
from tests.test_docs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"common", "fedserver", "fedclient", "fedwire", "fedlab", "fedpvr"}
DISTRIBUTIONS = {
    "PIL": "pillow",
    "google": "protobuf",
    "google_crc32c": "google-crc32c",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "mlflow": "mlflow-skinny",
    "tensorboardX": "tensorboardx",
}
"""Where a library is imported under another name than it is installed under."""
BIN = Path(sys.executable).parent


def distribution(library: str) -> str:
    """What installs a library."""
    return DISTRIBUTIONS.get(library, library)


def declared(*names: str) -> dict[str, Requirement]:
    """What the package asks for, or what these extras add to it, without what they take from other extras."""
    wanted = [each for name in names for each in PROJECT["optional-dependencies"][name]]
    found = [Requirement(each) for each in (wanted if names else PROJECT["dependencies"])]
    inner = {extra for each in found if each.name == "fedpvr" for extra in each.extras}
    own = {each.name.lower(): each for each in found if each.name != "fedpvr"}
    return own | (declared(*sorted(inner)) if inner else {})


IF_THERE = {"pandas", "_typeshed"}
"""What a program may have for its own sake, and what only type checkers see."""


def pins() -> dict[str, str]:
    """requirements.txt, and what trackers and Ray need besides it."""
    text = "".join((ROOT / f"requirements{kind}.txt").read_text() for kind in ("", "-trackers", "-ray"))
    lines = re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)
    return {name.lower().replace("_", "-"): number for name, number in lines}


def test_every_library_that_is_imported_is_declared_and_its_pin_is_within_the_range() -> None:
    tops = {name.partition(".")[0] for path in FILES for name in imports(path)}
    foreign = {distribution(name) for name in tops - OURS - IF_THERE - sys.stdlib_module_names}
    asked = declared() | declared("all", "ray")
    assert {"torch", "grpcio", "numpy"} <= foreign <= asked.keys()
    for name in foreign:
        assert asked[name].specifier.contains(pins()[name]), name


def test_an_extra_that_is_recommended_brings_the_library() -> None:
    for library, names in extras.EXTRAS.items():
        assert distribution(library) not in declared()
        for name in names:
            assert distribution(library) in declared(name), f"{library}: {name}"
    assert PROJECT["optional-dependencies"].keys() - {"all"} == {
        name for names in extras.EXTRAS.values() for name in names
    }


@pytest.mark.parametrize(
    ("absent", "program", "arguments", "extra"),
    [
        ("torch", "fedclient", ["run", "--server", "127.0.0.1:1"], "client"),
        ("torch", "fedlab", ["demo"], "lab"),
        ("matplotlib", "fedlab", ["reproduce", "figC1", "--scale", "tiny"], "lab"),
        ("hpack", "fedwire", ["pcap", "tests/data/run.pcap"], "wire"),
    ],
)
def test_a_command_without_its_extra_names_it_in_one_line(
    absent: str, program: str, arguments: list[str], extra: str, tmp_path: Path
) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    code = (
        "import importlib.util, sys\n"
        f"sys.modules[{absent!r}] = None\n"  # As if it were not there.
        "look = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name == {absent!r} else look(name, *rest)\n"
        f"from {program}.cli import main\n"
        f"main({arguments!r})\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2
    expected = f"Error: this needs {absent}, which is not installed; say: pip install 'fedpvr[{extra}]'\n"
    assert ended.stderr == expected


def test_a_library_that_no_extra_brings_is_no_matter_of_extras() -> None:
    assert extras.missing(ModuleNotFoundError(name="somebody_elses")) is None
    assert "fedpvr[client]" in str(extras.missing(ModuleNotFoundError(name="torch.nn"), "wire"))
    extras.require("torch")


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_tells_its_version_and_those_of_what_it_stands_on(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{program.upper()}_VERSION", "not of ours")
    result = invoke(program, "--version")
    assert result.exit_code == 0
    assert result.output.startswith(f"fedpvr {PROJECT['version']} (Python 3.")
    for library in ("grpcio", "protobuf", "torch"):
        assert f"{library} {version(library)}" in result.output
    assert invoke(program, "nothing").exit_code == 2


def test_versions_are_told_without_an_import_and_without_what_is_not_there(tmp_path: Path) -> None:
    code = (
        "import importlib.metadata as m, sys\n"
        "real = m.version\n"
        "def version(name):\n"
        "    if name == 'torch': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
        "from common.installation.versions import versions\n"
        "print(versions())\n"
        "assert not {'torch', 'grpc', 'google.protobuf'} & set(sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert told.returncode == 0
    assert told.stdout.endswith(", no torch)\n")


def test_the_changelog_begins_with_what_is_unreleased_or_with_this_version() -> None:
    numbered = re.findall(r"^## (\d[\w.]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version("fedpvr") == PROJECT["version"], "the environment has the package as it is"
    assert not numbered or numbered[0] == PROJECT["version"]


def completed(words: str, shell: str = "bash") -> set[str]:
    """What a shell would offer, asked as its script asks: of the program itself, through the environment."""
    program = words.partition(" ")[0]
    question = {f"_{program.upper()}_COMPLETE": f"{shell}_complete", "COMP_WORDS": words}
    position = words.rpartition(" ")[2] if shell == "fish" else str(words.count(" "))
    environment = os.environ | question | {"COMP_CWORD": position}
    answer = subprocess.run([BIN / program], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return set(re.split(r"[\n,\t]", answer.stdout))


def test_commands_flags_and_values_are_completed() -> None:
    assert {"fedpvr", "fedavg"} <= completed("fedserver run --algorithm f")
    assert "--server" in completed("fedclient run --se", "zsh")
    assert "stats" in completed("fedwire sta", "fish")


def test_bash_completes_all_programs_with_the_printed_script() -> None:
    script = (
        'eval "$(fedserver completion bash)"\n'
        "COMP_WORDS=(fedlab mod) COMP_CWORD=1\n"
        "_fedlab_completion fedlab\n"
        'echo "${COMPREPLY[@]}"\n'
        "complete -p fedserver fedclient fedwire fedlab"
    )
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    told = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[0] == "model"
    assert told.stdout.count("complete -o nosort -F") == len(PROGRAMS)


@pytest.mark.parametrize(("shell", "word"), [("zsh", "compdef"), ("fish", "complete --no-files")])
def test_other_shells_have_a_script_too(shell: str, word: str) -> None:
    told = invoke("fedserver", "completion", shell)
    assert told.exit_code == 0
    assert all(f"{program}_completion" in told.output for program in PROGRAMS)
    assert word in told.output
    assert invoke("fedserver", "completion", "tcsh").exit_code == 2
