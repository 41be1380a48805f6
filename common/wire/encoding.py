"""How a whole layout travels: a codec for each tensor, and whether it is sent as a difference to x."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from common.errors import Fault, WireError
from common.tensors.layout import BLOCK, DTYPES, Array, Flat, Layout, Purpose, TensorSpec, all_finite
from common.wire.codec_choice import Codecs, codec_for
from common.wire.codecs import DERIVED, RAW, Codec

RESIDUAL = "residual."
"""Stands before the name of a tensor for what its coding has left out so far."""
LATEST = 8
"""Encodings that are made once for a layout, as rounds that follow each other have the same."""


@dataclass(frozen=True)
class TensorEncoding:
    """How one tensor travels."""

    codec: Codec = RAW
    difference: bool = False
    """The elements are differences to x."""


PLAIN = TensorEncoding()


class Encoding:
    """Turns a flat buffer of values into the flat buffer that is sent, and back.

    Where nothing is coded the two are one and the same buffer and nothing is copied.
    """

    def __init__(self, layout: Layout, tensor_encodings: Sequence[TensorEncoding] | None = None) -> None:
        self.layout = layout
        self.tensor_encodings = (
            tuple(tensor_encodings) if tensor_encodings is not None else (PLAIN,) * len(layout.specs)
        )
        self.plain = all(tensor_encoding == PLAIN for tensor_encoding in self.tensor_encodings)
        self.encoded = (
            layout if self.plain else Layout(map(_encoded_spec, layout.specs, self.tensor_encodings))
        )

    @property
    def buffer_bytes(self) -> int:
        """Of the buffer that is sent, with what aligns its tensors."""
        return self.encoded.num_bytes

    @property
    def tensor_bytes(self) -> int:
        """Of the tensors in it alone."""
        return sum(spec.num_bytes for spec in self.encoded.specs)

    @property
    def residuals(self) -> Layout:
        """What the sender of updates keeps of each lossily coded difference until its next update."""
        specs = (self.layout.specs[k] for k in self._lossy_differences())
        return Layout(TensorSpec(RESIDUAL + s.name, s.dtype, s.shape, Purpose.CLIENT_CONTROL) for s in specs)

    def _lossy_differences(self) -> list[int]:
        return [
            k
            for k, tensor_encoding in enumerate(self.tensor_encodings)
            if tensor_encoding.difference and tensor_encoding.codec.lossy
        ]

    def part(self, *purposes: Purpose) -> Encoding:
        """The encoding of only the tensors with one of these purposes."""
        indices = self.layout.indices(*purposes)
        return Encoding(self.layout.part(*purposes), [self.tensor_encodings[k] for k in indices])

    def matches(self, other: Encoding) -> bool:
        """Whether two sides mean the same bytes."""
        return (self.layout.specs, self.tensor_encodings) == (other.layout.specs, other.tensor_encodings)

    def encode_in_place(
        self, values: Flat, random: np.random.Generator, x: Flat | None, residual: Flat | None
    ) -> Flat:
        """The bytes to send. `values` become what the receiver will make of them.

        `x` is laid out as `values` are. `residual`, of the layout `residuals`, is added to the differences
        and becomes what is left out this time.
        """
        if self.plain:
            return values
        raw = self.encoded.allocate()
        left_out = dict(zip(self._lossy_differences(), self._residual_arrays(residual), strict=True))
        for k, tensor_encoding in enumerate(self.tensor_encodings):
            mine, out = self.elements(values, k), self.encoded.raw(raw, k)
            if tensor_encoding.difference and x is not None:
                base, left = self.elements(x, k), left_out[k]
                wanted = mine - base
                wanted += left
                tensor_encoding.codec.encode(wanted, out, random)
                tensor_encoding.codec.decode(out, left)
                np.add(left, base, out=mine)
                np.subtract(wanted, left, out=left)
            else:
                tensor_encoding.codec.encode(mine, out, random)
                if tensor_encoding.codec.lossy:
                    tensor_encoding.codec.decode(out, mine)
        return raw

    def _residual_arrays(self, residual: Flat | None) -> list[Array]:
        residuals = self.residuals
        flat = residuals.allocate() if residual is None else residual
        return [residuals.array(flat, k).reshape(-1) for k in range(len(residuals.specs))]

    def decode(self, raw: Flat, x: Flat | None, out: Flat | None = None) -> Flat:
        """The values in bytes that came, written to `out` where one is given; raises for bytes of no meaning.

        `x` is laid out as the values are. Where nothing is coded the values are `raw` itself.
        """
        if self.plain:
            return raw
        values = self.layout.allocate() if out is None else out
        for k in range(len(self.tensor_encodings)):
            self._decode_tensor(k, raw, x, self.elements(values, k))
        return values

    def _decode_tensor(self, k: int, raw: Flat, x: Flat | None, out: Array) -> None:
        with np.errstate(all="ignore"):  # `require_finite` is for what is not finite.
            try:
                self.tensor_encodings[k].codec.decode(self.encoded.raw(raw, k), out)
            except WireError as error:
                raise WireError(error.fault, str(error), self.layout.specs[k].name) from error
            if self.tensor_encodings[k].difference and x is not None:
                out += self.elements(x, k)

    def elements(self, flat: Flat, k: int) -> Array:
        """The values of one tensor in a row, as a view."""
        return self.layout.array(flat, k).reshape(-1)


def require_finite(layout: Layout, values: Flat, seen: Collection[Purpose] = ()) -> None:
    """Raises WireError, with the tensor's name, unless every number is finite; some purposes were seen to."""
    for k, spec in enumerate(layout.specs):
        if spec.purpose in seen:
            continue
        elements = layout.array(values, k).reshape(-1)
        for start in range(0, len(elements), BLOCK):
            if not all_finite(elements[start : start + BLOCK], spec.dtype):
                raise WireError(Fault.NOT_FINITE, "holds NaN or infinity; lower --eta-l?", spec.name)


def _encoded_spec(spec: TensorSpec, tensor_encoding: TensorEncoding) -> TensorSpec:
    """What stands for a tensor in the buffer that is sent: itself, or a row of bytes."""
    if tensor_encoding == PLAIN:
        return spec
    size = tensor_encoding.codec.num_bytes(spec.num_elements, DTYPES[spec.dtype].storage.itemsize)
    return TensorSpec(spec.name, "uint8", (size,), spec.purpose)


@lru_cache(maxsize=LATEST)
def downward(layout: Layout, codecs: Codecs) -> Encoding:
    """How x and c travel."""
    names = {Purpose.MODEL: codecs.down, Purpose.CONTROL: codecs.control}
    return Encoding(layout, [TensorEncoding(_codec(names, spec)) for spec in layout.specs])


@lru_cache(maxsize=LATEST)
def upward(layout: Layout, update_codec: str, control_codec: str) -> Encoding:
    """How an update travels: y_i as its difference to x unless it is raw, and c_i."""
    names = {Purpose.MODEL: update_codec, Purpose.CONTROL: control_codec}
    codecs = ((spec, _codec(names, spec)) for spec in layout.specs)
    return Encoding(
        layout, [TensorEncoding(c, difference=c.lossy and s.purpose is Purpose.MODEL) for s, c in codecs]
    )


def _codec(names: dict[Purpose, str], spec: TensorSpec) -> Codec:
    """Buffers are never coded: they are few, and a running variance must not become negative."""
    return codec_for(names[spec.purpose], spec.dtype, spec.num_elements) if spec.purpose in names else RAW


@lru_cache(maxsize=LATEST)
def without_control(encoding: Encoding) -> Encoding:
    """The same, with c left for the receiver to compute."""
    tensor_encodings = zip(encoding.layout.specs, encoding.tensor_encodings, strict=True)
    return Encoding(
        encoding.layout,
        [TensorEncoding(DERIVED) if s.purpose is Purpose.CONTROL else w for s, w in tensor_encodings],
    )
