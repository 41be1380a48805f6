"""The package as others get it: built, installed into clean environments, and used far from this tree."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import Federation
from tests.test_cli import COMMANDS
from tests.test_docs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MOST_BYTES = 150_000_000
"""Of an installation without extras."""
DATA = (
    *("common/data/digits.npz", "fedpvr/v1/federation.proto", "fedpvr/v1/federation_pb2.pyi"),
    *(f"{package}/py.typed" for package in ("common", "fedserver", "fedclient", "fedwire", "fedlab")),
)
DIGITS = 'model = "cnn"\ninput_shape = "1x8x8"\nclasses = ["0","1","2","3","4","5","6","7","8","9"]\n'


@dataclass(frozen=True)
class Environment:
    """A Python of its own, in which the package is installed from its wheel."""

    bin: Path
    away: Path
    """An empty directory to run commands in."""

    @classmethod
    def of(cls, folder: Path, wheel: Path, extras: str = "") -> Environment:
        """Makes one, with the versions that the project is tested with."""
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        pins = ["-c", str(ROOT / "requirements.txt")]
        subprocess.run([*pip, f"{wheel}{extras}", *pins], check=True)
        (folder / "away").mkdir()
        return cls(folder / "bin", folder / "away")

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end."""
        command = [str(self.bin / program), *arguments]
        return subprocess.run(command, cwd=self.away, env=clean(), capture_output=True, text=True)


def clean() -> dict[str, str]:
    """The environment without what would lead to this tree."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def base(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What a server needs."""
    return Environment.of(tmp_path_factory.mktemp("base"), next(built.glob("*.whl")))


@pytest.fixture(scope="module")
def client(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What a client needs."""
    return Environment.of(tmp_path_factory.mktemp("client"), next(built.glob("*.whl")), "[client]")


def contents(wheel: Path) -> dict[str, bytes]:
    """All files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_source_archive_makes_the_same_wheel_which_has_everything(built: Path, tmp_path: Path) -> None:
    wheel, archive = next(built.glob("*.whl")), next(built.glob("*.tar.gz"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", tmp_path, archive], check=True)
    made = contents(wheel)
    assert contents(tmp_path / wheel.name) == made
    assert made.keys() >= set(DATA)
    assert not [name for name in made if name.startswith(("tests", "benchmarks", "docs"))]


def test_a_server_is_small_and_has_no_torch(base: Environment) -> None:
    (packages,) = base.bin.parent.glob("lib/python3*/site-packages")
    tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    folders = [path for path in packages.iterdir() if not path.name.startswith(tools)]
    files = [file for path in folders for file in (path, *path.rglob("*")) if file.is_file()]
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    assert "no torch" in base.run("fedserver", "--version").stdout
    refused = base.run("fedserver", "run", "--listen", "127.0.0.1:0", "--num-clients", "1")
    assert refused.returncode == 2
    assert refused.stderr.startswith("Error: this run needs torch at the server")
    assert refused.stderr.endswith("give --task FILE.toml instead, or say: pip install 'fedpvr[client]'\n")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_without_any_extra(base: Environment, path: tuple[str, ...]) -> None:
    told = base.run(*path, "--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert "Example:" in told.stdout


def test_captures_are_read_without_any_extra_and_packets_are_not(base: Environment) -> None:
    data = ROOT / "tests" / "data"
    assert base.run("fedwire", "stats", str(data / "run.fedwire"), "--json").returncode == 0
    refused = base.run("fedwire", "pcap", str(data / "run.pcap"))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "pip install 'fedpvr[wire]'" in refused.stderr


@pytest.mark.parametrize("command", ["presets", "partition --num-clients 3"])
def test_the_lab_can_do_something_without_any_extra_too(base: Environment, command: str) -> None:
    assert base.run("fedlab", *command.split()).returncode == 0


@pytest.fixture
def installed(client: Environment) -> Iterator[Federation]:
    """Processes of the installed programs."""
    federation = Federation(client.away)
    yield federation
    federation.close()


def test_a_server_without_torch_and_clients_train_away_from_the_checkout(
    base: Environment, client: Environment, installed: Federation
) -> None:
    """The digits come with the package; the first weights from where torch is."""
    exported = client.run("fedlab", "model", "cnn", "--input-shape", "1x8x8", "--export", "first.safetensors")
    assert exported.returncode == 0, exported.stderr
    (client.away / "task.toml").write_text(DIGITS)

    def start(name: str, command: Path, *arguments: str) -> None:
        with (client.away / f"{name}.log").open("wb") as log:
            installed.processes[name] = subprocess.Popen(
                [command, *arguments], cwd=client.away, env=clean(), stdout=log, stderr=log
            )

    flags = ["--task", "task.toml", "--init", "first.safetensors", "--rounds", "2", "--num-clients", "2"]
    start("server", base.bin / "fedserver", "run", *flags, "--listen", "127.0.0.1:0", "--run-dir", "run")
    address = installed.wait_for("server", r"listening on (\S+)")
    for i in range(2):
        bring = ["--name", f"client-{i}", "--dataset", "digits", "--shard", f"{i}/2"]
        start(f"client-{i}", client.bin / "fedclient", "run", "--server", address, *bring)
    installed.finish(600)
    assert [record["updates"] for record in installed.rounds()] == [2, 2]
    assert installed.tensors("model")
