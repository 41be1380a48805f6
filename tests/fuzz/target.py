"""One decoder under test, and what must hold for it whatever the bytes are."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.errors import FedError
from tests.fuzz.mutators import Mutator, anything

CORPUS = Path(__file__).parent / "corpus"
FACTOR = 64
"""Bytes of memory that a byte of input may cost: protobuf and JSON make objects of single bytes."""


@dataclass(frozen=True)
class Target:
    """A decoder. Whatever it is given, nothing but a FedError may come out."""

    decode: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    """Good inputs, made by the encoders."""
    mutate: Mutator = anything
    spare_bytes: int = 1 << 20
    """Memory that the decoder may take whatever the input is: its buffers, and the layouts it knows."""

    def run(self, data: bytes) -> None:
        """Decodes; raises what a decoder must not raise. A warning counts: a peer must not write our log."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                self.decode(data)
            except FedError as refused:
                line = str(refused)
                assert line.isprintable(), "an error is one line"

    def run_measured(self, data: bytes) -> None:
        """The same, and no more memory than the input's size justifies: announced sizes are only claims.

        Twice if need be: a table of the interpreter that happens to grow meanwhile does so once.
        """
        allowed = self.spare_bytes + FACTOR * len(data)
        if (peak := self._peak(data)) > allowed:
            peak = min(peak, self._peak(data))
        assert peak <= allowed, f"{len(data)} bytes of input took {peak} bytes of memory, allowed {allowed}"

    def _peak(self, data: bytes) -> int:
        """Bytes of memory that decoding takes at the most."""
        tracemalloc.start()
        try:
            self.run(data)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def stored(name: str) -> list[bytes]:
    """The kept inputs of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
