"""No decoder lets anything but a typed error out, and none takes memory for what is only announced.

Without libFuzzer: the inputs that it found worth keeping, and changes to good ones. `make fuzz` looks for
more.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.names import natural
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.bundles import bundles
from common.wire.chunks import varint
from tests.fuzz.mutators import damaged, script, scripted
from tests.fuzz.target import CORPUS, Target, stored
from tests.fuzz.targets import TARGETS
from tests.samples import received

MAX_CORPUS_BYTES = 1 << 20
SLOW = {"calls": 30, "capture": 20, "commands": 15, "run-dir": 30, "data-set": 30, "outbox": 20}
"""Examples of the targets that do much for each."""
names = pytest.mark.parametrize("name", TARGETS)


@names
def test_kept_inputs_do_no_harm(name: str) -> None:
    for data in stored(name):
        TARGETS[name].run_measured(data)


@names
def test_good_inputs_do_no_harm(name: str) -> None:
    assert TARGETS[name].seeds()
    for data in TARGETS[name].seeds():
        TARGETS[name].run_measured(data)


@names
def test_damaged_inputs_do_no_harm(name: str) -> None:
    target = TARGETS[name]
    good = [*target.seeds(), *stored(name)]

    @settings(max_examples=SLOW.get(name, 60) // 2, deadline=None, database=None, derandomize=True)
    @given(st.integers(0, len(good) - 1), st.integers(0, 2**32), st.integers(1, 4))
    def check(which: int, seed: int, times: int) -> None:
        random = Random(seed)
        data = good[which]
        for _ in range(times):
            data = target.mutate(data, random, lambda part: damaged(part, random))
        target.run_measured(data)

    check()


@names
def test_inputs_of_any_bytes_do_no_harm(name: str) -> None:
    @settings(max_examples=min(SLOW.get(name, 25), 25), deadline=None, database=None, derandomize=True)
    @given(st.binary(max_size=200))
    def check(data: bytes) -> None:
        TARGETS[name].run_measured(data)

    check()


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} <= TARGETS.keys()
    assert sum(path.stat().st_size for path in files) < MAX_CORPUS_BYTES


def test_a_target_that_raises_something_else_is_noticed() -> None:
    def broken(data: bytes) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        Target(broken, list).run(b"")


def test_a_target_that_believes_an_announced_size_is_noticed() -> None:
    with pytest.raises(AssertionError, match="bytes of memory"):
        Target(lambda data: bytearray(int(data)), list).run_measured(b"9000000")


SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
DTYPES = st.sampled_from(["float32", "int64", "bool", "bfloat16"])


@settings(deadline=None, database=None, derandomize=True)
@given(st.lists(st.tuples(DTYPES, SHAPES), max_size=5), st.integers(1, 50), st.integers(0, 2**32))
def test_tensors_come_out_of_their_chunks_as_they_went_in(
    tensors: list[tuple[str, tuple[int, ...]]], chunk_bytes: int, seed: int
) -> None:
    layout = Layout(TensorSpec(f"t{k}", d, shape, Purpose.MODEL) for k, (d, shape) in enumerate(tensors))
    sent = np.random.default_rng(seed).integers(0, 256, layout.num_bytes, np.uint8)
    messages = [bundle.data for bundle in bundles(layout, sent, chunk_bytes=chunk_bytes)]
    assert received(layout, messages) == [layout.raw(sent, k).tobytes() for k in range(len(layout.specs))]


@given(st.lists(st.binary(max_size=300)))
def test_a_script_is_read_as_it_was_written(parts: list[bytes]) -> None:
    assert script(scripted(parts)) == parts


@given(st.integers(0, 2**64 - 1))
def test_a_varint_has_seven_bits_a_byte(value: int) -> None:
    data = varint(value)
    assert sum((byte & 0x7F) << 7 * k for k, byte in enumerate(data)) == value
    assert [byte >= 0x80 for byte in data] == [True] * (len(data) - 1) + [False]


@given(st.integers(0, 10**30), st.integers(0, 10**30))
def test_names_sort_by_the_numbers_in_them(a: int, b: int) -> None:
    assert (natural(f"client-{a}") < natural(f"client-{b}")) == (a < b)
