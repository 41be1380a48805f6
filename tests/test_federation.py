"""Whole federations of real processes, against the paper's equations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests import oracle, problem
from tests.killpoint import trap
from tests.processes import Federation

SHARDS = [list(range(0, 9)), list(range(9, 31)), list(range(31, 60))]
ROUNDS, STEPS, ETA_L, ETA_G = 4, 3, 0.2, 0.7
PARAMETERS = [f"{layer}.{kind}" for layer in (0, 2, 4) for kind in ("weight", "bias")]
FLAGS = [
    *("--model", "problem:network", "--dataset", "problem:data", "--partition", "shards.json"),
    *("--num-clients", "3", "--rounds", str(ROUNDS), "--local-steps", str(STEPS), "--batch-size", "full"),
    *("--eta-l", str(ETA_L), "--eta-g", str(ETA_G), "--no-augment", "--momentum", "0"),
]


def run(federation: Federation, *flags: str, names: tuple[str, ...] = ("a", "b", "c")) -> None:
    """Starts server and clients by hand and waits for all to end."""
    (federation.folder / "shards.json").write_text(json.dumps({"clients": SHARDS}))
    federation.server(*FLAGS, *flags)
    for name in names:
        federation.client(name)
    federation.finish()


def expected(
    svr: list[str],
    weights: list[float] | None = None,
    eta_g: float = ETA_G,
    mu: float = 0.0,
    feddyn_alpha: float = 0.0,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """x and c by the oracle."""
    images, labels = problem.data("train")
    return oracle.train(
        lambda: problem.network(3).double(),
        [(images[shard], labels[shard]) for shard in SHARDS],
        svr,
        rounds=ROUNDS,
        local_steps=STEPS,
        eta_l=ETA_L,
        eta_g=eta_g,
        weights=weights,
        mu=mu,
        feddyn_alpha=feddyn_alpha,
    )


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Same names, and values to 1e-12."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Federation]]:
    """One finished federation per algorithm."""
    federations = {
        name: Federation(tmp_path_factory.mktemp(name)) for name in ("fedpvr", "fedavg", "scaffold")
    }
    for name, federation in federations.items():
        run(federation, "--algorithm", name)
    yield federations
    for federation in federations.values():
        federation.close()


@pytest.mark.parametrize(
    ("algorithm", "svr"),
    [("fedpvr", ["4.weight", "4.bias"]), ("fedavg", []), ("scaffold", PARAMETERS)],
)
def test_a_federation_computes_the_papers_equations(
    runs: dict[str, Federation], algorithm: str, svr: list[str]
) -> None:
    x, c = expected(svr)
    assert_equal(runs[algorithm].tensors("model"), x)
    assert_equal(runs[algorithm].tensors("control"), c)


def test_the_server_counts_exactly_the_tensors_it_exchanges(runs: dict[str, Federation]) -> None:
    d, v = 8 * sum(p.numel() for p in problem.network(3).parameters()), 8 * (5 * 3 + 3)
    for algorithm, control in (("fedpvr", v), ("fedavg", 0), ("scaffold", d)):
        for record in runs[algorithm].rounds():
            for direction in ("down", "up"):
                counts = record["bytes"][direction]
                assert (counts["model"], counts["control"], counts["buffer"]) == (3 * d, 3 * control, 0)


def test_the_run_directory_tells_what_happened(runs: dict[str, Federation]) -> None:
    records = runs["fedpvr"].rounds()
    assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
    assert all(record["updates"] == 3 and 0 <= record["accuracy"] <= 1 for record in records)
    assert set(records[0]["drift"]) == set(PARAMETERS)
    config = json.loads((runs["fedpvr"].folder / "run" / "config.json").read_text())
    assert config["svr_names"] == ["4.weight", "4.bias"]
    assert [client["examples"] for client in config["clients"]] == [9, 22, 29]


def test_the_mean_of_the_variates_is_c(runs: dict[str, Federation]) -> None:
    from safetensors.torch import load_file

    for algorithm in ("fedpvr", "scaffold"):
        files = sorted((runs[algorithm].folder / "run" / "ledger").iterdir())
        c_is = [load_file(file) for file in files]
        for name, c in runs[algorithm].tensors("control").items():
            torch.testing.assert_close(
                torch.stack([c_i[name] for c_i in c_is]).mean(0), c, rtol=0, atol=1e-14
            )


def test_fedpvr_without_names_is_fedavg_and_with_all_names_scaffold(
    runs: dict[str, Federation], tmp_path: Path
) -> None:
    for patterns, algorithm in ((["none"], "fedavg"), (["0", "2.*", "4.weight", "4.bias"], "scaffold")):
        federation = Federation(tmp_path / algorithm)
        try:
            run(federation, *(part for pattern in patterns for part in ("--svr", pattern)))
        finally:
            federation.close()
        for file in ("model", "control"):
            assert federation.bytes(file) == runs[algorithm].bytes(file)


def test_fedprox_is_the_papers_with_its_pull(federation: Federation) -> None:
    run(federation, "--algorithm", "fedprox", "--mu", "0.5")
    assert_equal(federation.tensors("model"), expected([], mu=0.5)[0])
    assert federation.tensors("control") == {}


def test_feddyn_is_the_papers_even_for_a_client_that_lost_its_state(federation: Federation) -> None:
    (federation.folder / "shards.json").write_text(json.dumps({"clients": SHARDS}))
    federation.server(*FLAGS, *["--algorithm", "feddyn", "--feddyn-alpha", "0.3", "--eta-g", "1"])
    for name in ("a", "b"):
        federation.client(name)
    federation.client("c", through=trap("kill", "before training", 2))
    federation.wait_for_death("c")
    shutil.rmtree(federation.folder / "state" / "c")
    federation.client("c")
    federation.finish()
    assert_equal(federation.tensors("model"), expected([], eta_g=1.0, feddyn_alpha=0.3)[0])
    assert all(record["bytes"]["up"]["control"] == 0 for record in federation.rounds())


def test_weighting_by_examples(federation: Federation) -> None:
    run(federation, "--weighting", "examples")
    x, c = expected(["4.weight", "4.bias"], weights=[9.0, 22.0, 29.0])
    assert_equal(federation.tensors("model"), x)
    assert_equal(federation.tensors("control"), c)


def test_start_order_delays_and_names_change_nothing(
    runs: dict[str, Federation], federation: Federation
) -> None:
    (federation.folder / "shards.json").write_text(json.dumps({"clients": SHARDS}))
    federation.server(*FLAGS)
    for name in ("client-10", "client-9"):
        federation.client(name)
    for name in ("client-10", "client-9"):
        federation.wait_for("server", f"{name} is here")
    federation.client("client-2")
    federation.finish()
    for file in ("model", "control"):
        assert federation.bytes(file) == runs["fedpvr"].bytes(file)
