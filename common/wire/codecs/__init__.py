"""How the elements of a tensor become bytes: as they are, as shorter numbers, or only the largest of them.

A codec works on one-dimensional float32 or float64 arrays and computes in their dtype with plain elementwise
operations, so that whoever decodes gets the same numbers to the bit. Rounding to int8 is stochastic and
therefore right on average; what any lossy codec leaves out of an update its sender adds to the next one.
"""

from __future__ import annotations

from common.wire.codecs.base import DERIVED, RAW, Codec
from common.wire.codecs.largest import TopK
from common.wire.codecs.shorter import SCALED, Brain, Half, Int8

__all__ = ["DERIVED", "RAW", "SCALED", "Brain", "Codec", "Half", "Int8", "TopK"]
