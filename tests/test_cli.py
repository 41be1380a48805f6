"""The command lines: help, settings and their order, errors in one line."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import fedclient.cli
import fedlab.cli
import fedserver.cli
import fedwire.cli
from common.access import cli as access_cli
from common.errors import ConfigError
from fedserver.config import RunConfig
from tests.processes import Federation

PROGRAMS = {
    "fedserver": fedserver.cli.main,
    "fedclient": fedclient.cli.main,
    "fedlab": fedlab.cli.main,
    "fedwire": fedwire.cli.main,
}
COMMANDS = [(name, *path) for name, main in PROGRAMS.items() for path in [(), *((c,) for c in main.commands)]]


def invoke(program: str, *arguments: str, **options: Any) -> click.testing.Result:
    """Runs a command in this process, which keeps what it does at SIGTERM."""
    at_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        return CliRunner().invoke(PROGRAMS[program], arguments, **options)
    finally:
        signal.signal(signal.SIGTERM, at_sigterm)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_ends_with_an_example(path: tuple[str, ...]) -> None:
    for flag in ("--help", "-h"):
        result = invoke(path[0], *path[1:], flag)
        assert result.exit_code == 0, result.output
        example = result.output.rstrip().rsplit("Example:", 1)[1]
        assert example.strip().startswith(path[0])


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_does_not_load_torch_or_grpc(program: str) -> None:
    code = (
        f"import sys, {program}.cli as c\n"
        "try: c.main([next(n for n in ('run', 'demo', 'stats') if n in c.main.commands), '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'grpc', 'rich', 'cryptography'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "3"}, {"OPENBLAS_NUM_THREADS": "2"}])
def test_a_command_gives_blas_one_thread_before_numpy_loads_unless_told_otherwise(
    given: dict[str, str],
) -> None:
    """Each command in a fork of a process that has imported nothing of it; it ends where numpy would load."""
    code = (
        "import builtins, importlib, os, sys\n"
        f"for program in {[*PROGRAMS]}:\n"
        "    if os.fork() == 0:\n"
        "        def watched(name, *rest, real=builtins.__import__):\n"
        "            if name == 'numpy' and 'numpy' not in sys.modules:\n"
        "                found = os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS']\n"
        "                print(*found, flush=True)\n"
        "                os._exit(0)\n"
        "            return real(name, *rest)\n"
        "        builtins.__import__ = watched\n"
        "        importlib.import_module(f'{program}.cli')\n"
        "        import numpy\n"
        "        sys.exit()\n"
        "    os.wait()"
    )
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {key: value for key, value in os.environ.items() if key not in names} | given
    found = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    omp = given.get("OMP_NUM_THREADS", "1")
    expected = f"{omp} {given.get('OPENBLAS_NUM_THREADS', omp)}"
    assert found.stdout.splitlines() == [expected] * len(PROGRAMS)


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Catches the settings with which a server would start."""
    import fedserver.server

    seen: list[RunConfig] = []

    async def serve(config: RunConfig, *_: object, **__: object) -> int:
        seen.append(config)
        return 0

    monkeypatch.setattr(fedserver.server, "serve", serve)
    return seen


def test_flags_go_before_environment_before_file_before_default(
    resolved: list[RunConfig], tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text('rounds = 2\nnum-clients = 3\neta_l = 0.5\nsvr = ["classifier"]\nbatch-size = "full"\n')
    environment = {"FEDSERVER_RUN_ROUNDS": "4", "FEDSERVER_RUN_NUM_CLIENTS": "5"}
    result = invoke("fedserver", "run", "--config", str(file), "--rounds", "6", env=environment)
    assert result.exit_code == 0, result.output
    (config,) = resolved
    assert (config.rounds, config.num_clients, config.eta_l, config.seed) == (6, 5, 0.5, 0)
    assert (config.svr, config.batch_size) == (("classifier",), None)


def test_a_preset_goes_after_everything_else(resolved: list[RunConfig], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("alpha = 0.7")
    flags = ["--preset", "cifar10-vgg11-a0.1", "--config", str(tmp_path / "run.toml"), "--rounds", "3"]
    result = invoke("fedserver", "run", *flags, env={"FEDSERVER_RUN_BATCH_SIZE": "64"})
    assert result.exit_code == 0, result.output
    (config,) = resolved
    assert (config.dataset, config.model, config.eta_l, config.momentum) == ("cifar10", "vgg11", 0.05, 0.9)
    assert (config.rounds, config.batch_size, config.alpha) == (3, 64, 0.7)
    assert invoke("fedserver", "run", "--preset", "nothing").exit_code == 2


def test_a_flag_silences_what_it_excludes_in_a_file(resolved: list[RunConfig], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("local-epochs = 2")
    arguments = ["run", "--config", str(tmp_path / "run.toml"), "--local-steps", "7"]
    assert invoke("fedserver", *arguments).exit_code == 0
    assert (resolved[0].local_epochs, resolved[0].local_steps) == (None, 7)


def test_defaults_are_those_of_the_settings_class(resolved: list[RunConfig]) -> None:
    assert invoke("fedserver", "run").exit_code == 0
    assert resolved == [RunConfig()]


def test_every_setting_has_a_flag() -> None:
    flags = {parameter.name for parameter in PROGRAMS["fedserver"].commands["run"].params}
    assert set(RunConfig().as_dict()) <= flags


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--eta-g", "0"], "--eta-g must be positive, got 0.0"),
        (["--eta-l", "nan"], "--eta-l must be positive, got nan"),
        (["--alpha", "-1"], "--alpha must be positive, got -1.0"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--momentum", "1"], "--momentum must be from 0 to below 1, got 1.0"),
        (["--local-epochs", "2", "--local-steps", "3"], "exclude each other"),
        (["--algorithm", "fedavg", "--svr", "x"], "--svr goes with --algorithm fedpvr"),
        (["--model", "lenet"], "unknown model 'lenet'; choose cnn"),
        (["--dataset", "mnist"], "unknown data set 'mnist'"),
        (["--partition", "missing.json"], "--partition missing.json: no such file"),
        (["--listen", "nowhere"], "--listen must be HOST:PORT"),
        (["--config", "missing.toml"], "--config missing.toml cannot be read: No such file or directory"),
        (["--seed", "-1"], "--seed must be from 0"),
        (["--num-clients", "100000"], "--num-clients must be at most"),
        (["--batch-size", "many"], "expected a whole number or full, got 'many'"),
        (["--batch-size", "0"], "--batch-size must be at least 1"),
    ],
)
def test_settings_that_cannot_work_end_in_one_line_and_code_2(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("fedserver", "run", *flags)
    assert result.exit_code == 2
    assert message in result.output.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_value_says_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("many", "-3"):
        monkeypatch.setenv("FEDSERVER_RUN_ROUNDS", value)
        last = invoke("fedserver", "run").output.splitlines()[-1]
        assert "--rounds" in last
        assert last.endswith("(from FEDSERVER_RUN_ROUNDS in the environment)")
    monkeypatch.delenv("FEDSERVER_RUN_ROUNDS")
    (tmp_path / "run.toml").write_text("rounds = 0")
    last = invoke("fedserver", "run", "--config", str(tmp_path / "run.toml")).output.splitlines()[-1]
    assert last == "Error: --rounds must be at least 1, got 0 (from the file of --config)"
    assert invoke("fedserver", "run", "--rounds", "0").output.splitlines()[-1].endswith("got 0")


def test_an_unknown_setting_in_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("roundz = 2")
    result = invoke("fedserver", "run", "--config", str(tmp_path / "run.toml"))
    assert result.exit_code == 2
    assert "unknown setting 'roundz'" in result.output


def test_settings_are_checked_wherever_they_come_from() -> None:
    with pytest.raises(ConfigError, match="--algorithm must be one of fedpvr"):
        RunConfig(algorithm="sgd")
    with pytest.raises(ConfigError, match="--weighting must be one of"):
        RunConfig(weighting="size")
    with pytest.raises(ConfigError, match="--eval-every must not be negative"):
        RunConfig(eval_every=-1)


def test_what_only_the_model_can_tell_ends_in_one_line_too(federation: Federation) -> None:
    cases = {
        "--svr head": "Error: --svr 'head' selects no parameter",
        "--model vgg11 --dataset problem:data": "Error: model vgg11 does not take examples of shape 6",
        "--model broken:net": "Error: model broken:net: factory(10) failed in broken.py, line 4: Zero",
        "--model nowhere:f": "Error: nowhere:f: no module 'nowhere' in the current directory",
        "--num-clients 5000": "Error: --num-clients is 5000, but there are only 1437 examples to share",
    }
    (federation.folder / "broken.py").write_text("import torch\n\ndef net(n):\n    return n / 0\n")
    for k, (flags, message) in enumerate(cases.items()):
        name = f"server{k}"
        federation.start(
            name, "fedserver", "run", "--listen", "127.0.0.1:0", "--run-dir", f"run{k}", *flags.split()
        )
        assert federation.exit_code(name) == 2, federation.log(name)
        assert federation.log(name).splitlines()[-1].startswith(message)
        assert "Traceback" not in federation.log(name)
        assert not (federation.folder / f"run{k}").exists(), "a run that never began leaves nothing behind"


def test_a_port_in_use_and_a_used_run_directory_are_named(federation: Federation) -> None:
    federation.server("--num-clients", "1")
    federation.start("second", "fedserver", "run", "--listen", federation.address, "--run-dir", "other")
    assert federation.exit_code("second") == 2
    assert f"Error: --listen {federation.address}: cannot listen there" in federation.log("second")
    (federation.folder / "old").mkdir()
    (federation.folder / "old" / "config.json").write_text("{}")
    federation.start("third", "fedserver", "run", "--listen", "127.0.0.1:0", "--run-dir", "old")
    assert federation.exit_code("third") == 1
    assert "old/config.json: algorithm: expected text, got nothing; it is damaged or not of a run" in (
        federation.log("third")
    )


def test_status_shows_a_running_server_to_people_and_scripts(federation: Federation) -> None:
    federation.server("--num-clients", "2", "--algorithm", "scaffold")
    federation.client("early")
    federation.wait_for("server", "early is here")
    result = invoke("fedserver", "status", "--server", federation.address, "--json")
    assert result.exit_code == 0
    status = json.loads(result.output)
    assert status["algorithm"] == "scaffold"
    assert status["phase"] in ("preparing", "waiting")
    assert [client["name"] for client in status["clients"]] == ["early"]
    assert status["bytes"]["down"].keys() == {"model", "buffer", "control", "other"}
    # Of the client that waits nothing is counted yet; this call itself is the only one of nobody's.
    assert status["traffic"].keys() <= {""}
    credentials = invoke("fedserver", "status", "--server", federation.address)
    assert credentials.exit_code == 0
    assert "early" in credentials.output
    assert "waiting, 1 of 2 clients are here" in credentials.output or "preparing" in credentials.output


def test_status_without_a_server_says_what_to_do() -> None:
    result = invoke("fedserver", "status", "--server", "127.0.0.1:9")
    assert result.exit_code == 1
    assert result.output == (
        "Error: no server answers at 127.0.0.1:9; start one with: fedserver run --listen 127.0.0.1:9\n"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shard", "0/2"], "--shard goes with --dataset"),
        (["--dataset", "digits", "--shard", "2/2"], "--shard must be I/N"),
        (["--dataset", "digits", "--shard", "x"], "--shard must be I/N"),
        (["--dataset", "mnist"], "unknown data set 'mnist'"),
        (["--dataset", "digits", "--data", "x"], "exclude each other"),
        (["--server", "here"], "--server must be HOST:PORT"),
        (["--model", "lenet"], "unknown model 'lenet'"),
        (["--model", "a b:c"], "expected module:factory, got 'a b:c'"),
        (["--allow-plugin", "digits"], "expected module:factory, got 'digits'"),
        (["--server", "192.0.2.1:1"], "192.0.2.1:1 is on another machine, and nothing would be encrypted"),
        (["--server", "fl.example:1"], "give --certs DIR with the server's ca.pem or"),
    ],
)
def test_client_settings_that_cannot_work(flags: list[str], message: str) -> None:
    result = invoke("fedclient", "run", *flags)
    assert result.exit_code == 2
    assert message in result.output


ADDRESSES = [
    *("http://127.0.0.1:50051", "https://a:1", "dns:a:1", "unix:/x:1", "a/b:1", "u@a:1"),
    *("::1:1", "[x]:1", "a b:1", "a:99999", "a:1x"),
]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("command", ["fedclient run", "fedserver status", "fedserver health"])
def test_an_address_is_a_host_and_a_port_without_a_scheme(command: str, address: str) -> None:
    result = invoke(*command.split(), "--server", address)
    assert result.exit_code == 2
    expected = "Error: --server must be HOST:PORT, for example 127.0.0.1:50051"
    assert result.output == f"{expected}, got {address!r}\n"


@pytest.mark.parametrize(
    "address", ["a:1", "fl.example.org:443", "127.0.0.1:0", "[::1]:1", "[fe80::1%eth0]:1"]
)
def test_names_and_addresses_of_both_kinds_are_taken(address: str) -> None:
    access_cli.require_address("--server", address)


@pytest.mark.parametrize(
    ("arguments", "d", "v"),
    [
        (["vgg11", "--num-classes", "10"], 9750922, 530442),
        (["resnet8", "--num-classes", "100"], 83892, 6500),
        (["resnet8", "--svr", "*"], 78042, 78042),
        (["resnet8", "--svr", "none"], 78042, 0),
    ],
)
def test_a_model_card_has_d_v_and_the_multiplier(arguments: list[str], d: int, v: int) -> None:
    result = invoke("fedlab", "model", *arguments, "--json")
    card = json.loads(result.output)
    assert (card["d"], card["v"]) == (d, v)
    assert card["multiplier"] == pytest.approx(2 * (1 + v / d))
    elements = [math.prod(tensor["shape"]) for tensor in card["tensors"] if tensor["svr"]]
    assert sum(elements) == v
    assert "S_svr" in invoke("fedlab", "model", *arguments).output


def test_the_shape_of_an_example_changes_what_a_model_has() -> None:
    for shape in ("1x8x8", "3x32x32"):
        card = json.loads(invoke("fedlab", "model", "mlp", "--input-shape", shape, "--json").output)
        first = card["tensors"][0]
        assert first["shape"][1] == math.prod(map(int, shape.split("x")))
    assert (
        "--input-shape must be numbers" in invoke("fedlab", "model", "mlp", "--input-shape", "8 by 8").stderr
    )


def test_a_partition_can_just_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("fedlab", "partition", "--num-clients", "5")
    assert result.exit_code == 0
    assert result.output.count("287") == 5
    assert list(tmp_path.iterdir()) == []


def test_an_impossible_place_is_named_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = str(tmp_path / "file" / "out")
    for arguments in (["partition", "--out", out], ["report", "tests/data/run", "--out", out]):
        result = invoke("fedlab", *arguments)
        assert result.exit_code == 1
        assert result.stderr == f"Error: {out}: Not a directory\n"


def test_a_partition_is_written_and_shown(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    arguments = ["partition", "--alpha", "0.1", "--num-clients", "5", "--seed", "1", "--out", str(out)]
    credentials = invoke("fedlab", *arguments)
    assert credentials.exit_code == 0
    assert credentials.output.count("287") == 5
    first = out.read_text()
    counts = json.loads(invoke("fedlab", *arguments, "--json").output)["counts"]
    assert out.read_text() == first
    assert [sum(row) for row in counts] == [287] * 5
    uneven = json.loads(invoke("fedlab", *arguments, "--no-equal", "--json").output)["counts"]
    assert sum(map(sum, uneven)) == 1437
    assert invoke("fedlab", *arguments[:2], "0", *arguments[3:]).exit_code == 2


SMALL = "--num-clients 2 --rounds 2 --local-steps 1 --eval-every 0"


def test_logs_are_lines_for_people_objects_for_programs_or_nothing(tmp_path: Path) -> None:
    def output(name: str, *flags: str) -> list[str]:
        where = ["--run-dir", str(tmp_path / name)]
        result = invoke("fedlab", "simulate", *SMALL.split(), *where, *flags)
        assert result.exit_code == 0, result.output
        return result.output.splitlines()

    lines = output("text")
    assert all(re.match(r"\d\d:\d\d:\d\d \S", line) for line in lines)
    objects = [json.loads(line) for line in output("json", "--log-format", "json")]
    # Whether a run has to wait for its clients at first is a matter of luck; how many rounds it has is not.
    assert sum(found["event"] == "round_closed" for found in objects) == 2
    assert sum(re.search(r" round \d/2: ", line) is not None for line in lines) == 2
    assert all(found["text"] and found["event"] and found["level"] == "notice" for found in objects)
    assert output("quiet", "-q") == []


def test_a_round_of_clients_that_keep_a_validation_share_says_what_came_of_it(tmp_path: Path) -> None:
    result = invoke(
        "fedlab", "simulate", *SMALL.split(), "--validation", "0.2", "--run-dir", str(tmp_path / "r")
    )
    assert (
        len(re.findall(r"round \d/2: (?:accuracy \S+ )?validation accuracy \d+\.\d\d%", result.output)) == 2
    )


def test_nobody_is_quiet_and_verbose_at_once() -> None:
    for program in ("fedserver", "fedclient"):
        result = invoke(program, "run", "-q", "-v")
        assert result.exit_code == 2
        assert "--quiet and --verbose exclude each other" in result.output
