"""Random streams: one seed fixes the whole run, and no stream depends on when or where it is drawn."""

from __future__ import annotations

import numpy as np

INIT, BATCHES, AUGMENT, DROPOUT, VALIDATION, CALIBRATION, CODEC_UP, CODEC_DOWN, SELECTION, PROBE = range(10)
"""What a stream is for, so that two of them never coincide."""


def stream(seed: int, *key: int) -> np.random.Generator:
    """The generator for a purpose and, for example, a round and a client."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *key])))


def number(seed: int, *key: int) -> int:
    """A seed for a library that wants one integer."""
    return int(stream(seed, *key).integers(2**63))
