"""The manifest that opens a stream of tensors: what will come, checked before memory is taken for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from weakref import WeakKeyDictionary

from common.errors import Fault, WireError
from common.tensors.layout import DTYPES, Layout, Purpose, TensorSpec
from common.wire.chunks import parsed
from common.wire.codec_choice import announced_codec
from common.wire.encoding import Encoding, TensorEncoding
from fedpvr.v1 import tensor_pb2 as pb

MAX_TENSORS = 20_000
MAX_NAME_BYTES = 512
MAX_DIMS = 16
MAX_TENSOR_BYTES = 1 << 40

_DTYPE_BY_NUMBER = {dtype.number: name for name, dtype in DTYPES.items()}
_MADE: WeakKeyDictionary[Encoding, tuple[pb.TensorSpec, ...]] = WeakKeyDictionary()


def manifest(encoding: Encoding) -> tuple[pb.TensorSpec, ...]:
    """Announces every tensor of a layout, and how it travels. Made once; nobody may change it."""
    if encoding not in _MADE:
        _MADE[encoding] = tuple(_entries(encoding))
    return _MADE[encoding]


def _entries(encoding: Encoding) -> Iterator[pb.TensorSpec]:
    return (
        pb.TensorSpec(
            name=spec.name,
            dtype=pb.DType.ValueType(DTYPES[spec.dtype].number),
            shape=spec.shape,
            purpose=pb.Purpose.ValueType(spec.purpose),
            codec=pb.Codec.ValueType(tensor_encoding.codec.number),
            num_bytes=sent.num_bytes,
            difference=tensor_encoding.difference,
            **vars(tensor_encoding.codec),
        )
        for spec, tensor_encoding, sent in zip(
            encoding.layout.specs, encoding.tensor_encodings, encoding.encoded.specs, strict=True
        )
    )


def read_manifest(announced: Sequence[pb.TensorSpec]) -> Encoding:
    """What a peer announces, after checking every number in it. Allocates nothing of that size."""
    if len(announced) > MAX_TENSORS:
        raise WireError.broken_contract(
            f"at most {MAX_TENSORS} tensors can be announced, got {len(announced)}"
        )
    specs: list[TensorSpec] = []
    tensor_encodings: list[TensorEncoding] = []
    seen: set[tuple[int, str]] = set()
    for entry in announced:
        spec, tensor_encoding = _read_spec(entry)
        if (spec.purpose, spec.name) in seen:
            raise WireError.broken_contract(f"announced twice as {spec.purpose.name}", spec.name)
        seen.add((spec.purpose, spec.name))
        specs.append(spec)
        tensor_encodings.append(tensor_encoding)
    return Encoding(Layout(specs), tensor_encodings)


def read_again(announced: Sequence[pb.TensorSpec]) -> Encoding:
    """The same for a peer that announces the same in every round, which is read and checked once."""
    return _read_once(tuple(entry.SerializeToString() for entry in announced))


@lru_cache(maxsize=2)
def _read_once(announced: tuple[bytes, ...]) -> Encoding:
    return read_manifest([parsed(pb.TensorSpec, entry) for entry in announced])


def require_expected(announced: Sequence[pb.TensorSpec], expected: Encoding) -> None:
    """Raises the most telling error unless a peer announces just the expected tensors."""
    if tuple(announced) != manifest(expected):
        require_same(read_manifest(announced), expected)


def _read_spec(entry: pb.TensorSpec) -> tuple[TensorSpec, TensorEncoding]:
    name = entry.name
    if not name or len(name.encode()) > MAX_NAME_BYTES:
        raise WireError.broken_contract(
            f"a tensor name has 1 to {MAX_NAME_BYTES} bytes, got {len(name.encode())}"
        )
    if entry.dtype not in _DTYPE_BY_NUMBER:
        raise WireError(Fault.WRONG_DTYPE, f"unknown dtype number {entry.dtype}", name)
    if int(entry.purpose) not in set(Purpose):
        raise WireError.broken_contract(f"unknown purpose number {entry.purpose}", name)
    if len(entry.shape) > MAX_DIMS:
        raise WireError(Fault.WRONG_SHAPE, f"at most {MAX_DIMS} dimensions, got {len(entry.shape)}", name)
    dtype = _DTYPE_BY_NUMBER[entry.dtype]
    elements, itemsize = math.prod(entry.shape), DTYPES[dtype].storage.itemsize
    span = math.prod(max(size, 1) for size in entry.shape)  # An empty tensor may have one huge dimension.
    try:
        codec = announced_codec(entry.codec, dtype, elements, entry.block, entry.kept)
    except WireError as error:
        raise WireError(error.fault, str(error), name) from error
    implied = codec.num_bytes(elements, itemsize)
    if implied != entry.num_bytes or span * itemsize > MAX_TENSOR_BYTES:
        raise WireError(
            Fault.WRONG_SHAPE,
            f"{dtype} {tuple(entry.shape)} makes {implied} bytes as {codec.name}, "
            f"announced {entry.num_bytes}",
            name,
        )
    if entry.difference and not codec.lossy:
        raise WireError.broken_contract(f"a difference must have a lossy codec, got {codec.name}", name)
    return TensorSpec(name, dtype, tuple(entry.shape), Purpose(entry.purpose)), TensorEncoding(
        codec, entry.difference
    )


def require_same(came: Encoding, expected: Encoding) -> None:
    """Raises the most telling error if a peer announced other tensors than the expected ones."""
    if came.matches(expected):
        return
    wanted = {(spec.purpose, spec.name): spec for spec in expected.layout.specs}
    for spec in came.layout.specs:
        match = wanted.pop((spec.purpose, spec.name), None)
        if match is None:
            raise WireError(
                Fault.UNKNOWN_TENSOR, f"no such {spec.purpose.name} tensor in this run", spec.name
            )
        if spec.dtype != match.dtype:
            raise WireError(Fault.WRONG_DTYPE, f"expected {match.dtype}, got {spec.dtype}", spec.name)
        if spec.shape != match.shape:
            raise WireError(Fault.WRONG_SHAPE, f"expected shape {match.shape}, got {spec.shape}", spec.name)
    for spec in wanted.values():
        raise WireError(Fault.MISSING_TENSOR, f"expected as {spec.purpose.name}, not announced", spec.name)
    if came.layout.specs != expected.layout.specs:
        raise WireError.broken_contract("the tensors are announced in another order than the run's")
    for spec, mine, due in zip(
        came.layout.specs, came.tensor_encodings, expected.tensor_encodings, strict=True
    ):
        if mine != due:
            raise WireError.broken_contract(
                f"expected codec {_in_words(due)}, got {_in_words(mine)}", spec.name
            )


def _in_words(tensor_encoding: TensorEncoding) -> str:
    return (
        f"{tensor_encoding.codec.name} of the {'difference to x' if tensor_encoding.difference else 'value'}"
    )
