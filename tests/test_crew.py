"""A simulation by several processes is the one by one process, to the bit and to the byte."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, DivergedError, RunError
from common.events import Event, unheard
from fedlab.crew.hands import Hands, shared_out
from fedlab.crew.memory import SharedMemory
from fedlab.direct import rooms
from fedlab.events import WorkerLost
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.events.rounds import RoundOpened, UpdateAccepted
from tests.test_direct import CASES, SETTINGS, results

MORE: dict[str, dict[str, Any]] = {
    "augmented and validated": {"model": "cnn", "augment": True, "validation": 0.2, "num_clients": 4},
    "few of many": {"num_clients": 7, "clients_per_round": 3, "rounds": 4, "algorithm": "scaffold"},
    "moving frozen and personal": {
        "num_clients": 5,
        "clients_per_round": 3,
        "rounds": 4,
        "model": "cnn",
        "freeze": ("features.0*",),
        "personal": ("classifier*",),
        "codec": ("topk:0.2",),
    },
    "variates of all before rounds of few": {
        "num_clients": 4,
        "clients_per_round": 2,
        "warm_variates": True,
    },
}


def simulated(folder: Path, jobs: int, **settings: Any) -> dict[str, Any]:
    """What a run by so many processes leaves."""
    simulate(RunConfig(**(SETTINGS | settings)), folder, unheard, jobs=jobs)
    return results(folder)


WITHOUT_MORE = (
    "explicit",
    "coded both ways",
    "buffers",
    "of a state of the server",
    "frozen and personal",
    "too large",
)
"""What others of these cases show too."""


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] * (c in WITHOUT_MORE)) for c in (*CASES, *MORE)]
)
def test_several_processes_leave_what_one_does(tmp_path: Path, case: str) -> None:
    settings = (CASES | MORE)[case]
    one, two = (simulated(tmp_path / str(jobs), jobs, **settings) for jobs in (1, 2))
    for name, found in one.items():
        assert found == two[name], name


@pytest.mark.parametrize("codec", [(), ("int8", "down=fp16")], ids=["plain", "coded"])
def test_an_s_svr_that_grows_has_room_in_every_process(tmp_path: Path, codec: tuple[str, ...]) -> None:
    settings = {"svr": ("auto:0.5",), "codec": codec, "alpha": 0.1, "rounds": 5, "local_steps": 5}
    more = {"model": "mlp", "num_clients": 4, "width": 1.0}
    one, two = (simulated(tmp_path / str(jobs), jobs, **settings, **more) for jobs in (1, 2))
    assert one["rounds.jsonl"][-1]["svr"], "a module has entered"
    assert one == two


def test_plug_ins_are_there_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "def model(num_classes):\n"
        "    head = torch.nn.Linear(8, num_classes)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.2), head)\n"
        "def data(split):\n"
        "    made = torch.Generator().manual_seed(len(split))\n"
        "    return torch.rand(60, 1, 2, 4, generator=made), torch.arange(60) % 3\n"
    )
    settings = {"model": "own:model", "dataset": "own:data", "batch_size": 4, "alpha": 5.0}
    assert simulated(tmp_path / "1", 1, **settings) == simulated(tmp_path / "3", 3, **settings)


def test_updates_that_do_not_fit_into_memory_go_to_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = simulated(tmp_path / "1", 1, codec=("int8",))
    monkeypatch.setattr("fedlab.crew.memory.KEPT_BYTES", 0)
    assert SharedMemory.of(1, rooms.KEPT_BYTES, 0, in_a_round=3, jobs=2).rooms == ()
    assert simulated(tmp_path / "2", 2, codec=("int8",)) == one


def workers_of(parent: int) -> list[int]:
    """Forks of a process that it has not waited for; other programs that it has started are none."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    own = Path(f"/proc/{parent}/cmdline").read_bytes()
    return [int(pid) for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes() in (own, b"")]


ALL, SOME = {"num_clients": 4}, {"num_clients": 5, "clients_per_round": 3}


@pytest.mark.parametrize(
    ("variates", "settings"),
    [
        ("explicit", ALL),
        ("derived", SOME),
        pytest.param("derived", ALL, marks=pytest.mark.slow),
        pytest.param("explicit", SOME, marks=pytest.mark.slow),
    ],
)
def test_the_others_take_over_from_a_worker_that_is_killed(
    tmp_path: Path, settings: dict[str, Any], variates: str
) -> None:
    settings = settings | {"rounds": 4, "variates": variates, "codec": ("topk:0.3",), "local_steps": 3}
    said: list[Event] = []

    def kill_in_round_two(event: Event) -> None:
        said.append(event)
        accepted = isinstance(event, UpdateAccepted) and event.round == 2
        if accepted and not any(isinstance(each, WorkerLost) for each in said) and not killed:
            killed.append(workers_of(os.getpid())[-1])
            os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    simulate(RunConfig(**(SETTINGS | settings)), tmp_path / "2", kill_in_round_two, jobs=2)
    assert [event.left for event in said if isinstance(event, WorkerLost)] == [1]
    found, whole = results(tmp_path / "2"), simulated(tmp_path / "1", 1, **settings)
    for name in ("model.safetensors", "control.safetensors"):
        assert found[name] == whole[name], name
    assert not workers_of(os.getpid())


def test_without_any_worker_left_the_run_ends_in_one_line(tmp_path: Path) -> None:
    def kill_all(event: Event) -> None:
        if isinstance(event, RoundOpened) and event.round == 2:
            for pid in workers_of(os.getpid()):
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(RunError, match="all workers were killed"):
        simulate(RunConfig(**SETTINGS), tmp_path / "run", kill_all, jobs=2)
    assert (
        simulated(tmp_path / "run", 1)["model.safetensors"]
        == simulated(tmp_path / "whole", 1)["model.safetensors"]
    )


def test_what_ends_a_client_or_the_run_ends_all_of_it(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="round 1: no client has an update to give"):
        simulated(tmp_path / "diverged", 2, eta_l=1e30, local_steps=20)
    with pytest.raises(DivergedError, match="is not finite any more"):
        simulated(tmp_path / "infinite", 2, eta_g=1e300)
    with pytest.raises(ConfigError, match="--jobs must be at least 1"):
        simulated(tmp_path / "none", 0)
    assert not workers_of(os.getpid())


def test_work_is_shared_out_by_its_size() -> None:
    home = shared_out({0: 1, 1: 9, 2: 4, 3: 4, 4: 2}, jobs=2)
    assert {home[1]} != {home[2]} == {home[3]}
    assert sorted(sum(w for i, w in enumerate((1, 9, 4, 4, 2)) if home[i] == k) for k in (0, 1)) == [10, 10]


def test_clients_move_only_where_not_all_are_drawn() -> None:
    work = dict.fromkeys(range(4), 5)
    still, moving = Hands(work, 2, move=False), Hands(work, 2, move=True)
    still.open([0, 2])
    assert [still.next(1), still.next(0), still.next(0), still.next(0)] == [None, 0, 2, None]
    moving.open([0, 1])
    assert (moving.next(0), moving.next(1)) == (0, 1)
    moving.open([1, 0, 2])
    assert [moving.next(1), moving.next(1), moving.next(1)] == [1, 2, 0], "its own, a new one, another's"
    moving.again(0)
    assert moving.lose(1) == [0, 1, 2]
    assert moving.next(0) == 0
