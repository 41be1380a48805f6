"""Training writes to its own memory only, whatever the model, its width and the strides of the data.

oneDNN has other kernels for machines without AVX-512, and one of them overran its memory; so both are run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.models.names import BUILT_IN
from tests.heap import CHECKING, under_checks

OLDER = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
WIDTHS = (0.25, 0.5, 0.75, 1.0)
MOST_AT_RISK = [
    *(f"{model},0.25,digits" for model in BUILT_IN),
    "resnet8-bn,0.25,cifar",
    "resnet8,0.5,digits",
    "resnet8,0.5,cifar",
]
ALL = [f"{model},{width},{data}" for model in BUILT_IN for width in WIDTHS for data in ("digits", "cifar")]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the allocator that checks is glibc's")


def test_the_allocator_notices_a_byte_behind_a_block() -> None:
    """Or else the other tests here would show nothing."""
    assert under_checks("overrun").returncode == -signal.SIGABRT


@pytest.mark.parametrize(
    "kernels", [pytest.param({}, id="own kernels", marks=pytest.mark.slow), pytest.param(OLDER, id="AVX2")]
)
@pytest.mark.parametrize(
    "cases",
    [pytest.param(MOST_AT_RISK, id="some"), pytest.param(ALL, id="all", marks=pytest.mark.slow)],
)
def test_training_leaves_the_heap_whole(kernels: dict[str, str], cases: list[str]) -> None:
    child = under_checks("train", *cases, **kernels)
    assert child.returncode == 0, f"{child.stdout.splitlines()[-1:]}: {child.stderr}"
    assert child.stdout.splitlines() == cases


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_narrow_resnet_trains_on_digits_ten_times_of_ten(tmp_path: Path) -> None:
    flags = "--model resnet8 --width 0.25 --num-clients 2 --rounds 2 --run-dir"
    command = [sys.executable, "-m", "fedlab", "simulate", *flags.split()]
    environment = os.environ | CHECKING | OLDER
    codes = [
        subprocess.run([*command, str(tmp_path / str(i))], env=environment, check=False).returncode
        for i in range(10)
    ]
    assert codes == [0] * 10
