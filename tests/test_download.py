"""A download that breaks goes on where it stopped, but only with what belongs to it."""

from __future__ import annotations

import numpy as np
import pytest

from common.errors import UnavailableError
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.bundles import bundles
from common.wire.chunks import read_chunk
from common.wire.encoding import Encoding
from common.wire.manifest import manifest
from fedclient.rpc.download import Download
from fedpvr.v1 import federation_pb2 as pb

LAYOUT = Layout([TensorSpec("w", "float32", (4,)), TensorSpec("w", "float32", (4,), Purpose.CONTROL)])
FLAT = np.arange(LAYOUT.num_bytes, dtype=np.uint8)


def header() -> pb.RoundHeader:
    """That of round 3."""
    return pb.RoundHeader(round=3, eta_l=0.1, tensors=manifest(Encoding(LAYOUT)))


def interrupted() -> Download:
    """x has come, and c has not."""
    download = Download()
    download.begin(header(), Encoding(LAYOUT))
    message, _ = bundles(LAYOUT, FLAT)
    chunk = read_chunk(message.data)
    assert chunk is not None
    download.add(chunk)
    return download


def resumed() -> pb.RoundHeader:
    """A header that goes on at c."""
    again = header()
    again.resumed_at.tensor = 1
    return again


def test_a_download_goes_on_where_it_stopped() -> None:
    download = interrupted()
    asked = download.resume()
    assert asked is not None
    assert (asked.round, asked.position.tensor) == (3, 1)
    download.begin(resumed(), Encoding(LAYOUT))
    _, message = bundles(LAYOUT, FLAT)
    chunk = read_chunk(message.data)
    assert chunk is not None
    download.add(chunk)
    raw = download.finish()
    for index in (0, 1):
        assert np.array_equal(LAYOUT.raw(raw, index), LAYOUT.raw(FLAT, index))
    assert download.resume() is None


@pytest.mark.parametrize("fields", [{"total_examples": 70.0}, {"eta_l": 0.2}], ids=str)
def test_what_a_restarted_server_sends_under_other_rules_is_not_mixed_with_what_is_here(
    fields: dict[str, float],
) -> None:
    """With other weights there is another c, though the round is the same."""
    download = interrupted()
    changed = resumed()
    for name, value in fields.items():
        setattr(changed, name, value)
    with pytest.raises(UnavailableError, match="another download; starting it again"):
        download.begin(changed, Encoding(LAYOUT))
    assert download.resume() is None
