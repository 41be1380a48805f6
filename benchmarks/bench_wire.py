"""How long does a model take through the wire codec, against copying it?"""

from __future__ import annotations

import numpy as np

from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.chunks import Receiver, chunk_frames, read_chunk
from timing import best_seconds, show

ELEMENTS = 9_250_000


def main() -> None:
    """Measures and prints."""
    layout = Layout([TensorSpec("w", "float32", (ELEMENTS,), Purpose.MODEL)])
    flat, into = layout.allocate(), layout.allocate()
    layout.array(flat, 0)[:] = np.random.default_rng(0).normal(size=ELEMENTS)
    frames = [frame.data for frame in chunk_frames(layout, flat)]

    def receive() -> None:
        receiver = Receiver(layout, into)
        for frame in frames:
            chunk = read_chunk(frame)
            assert chunk is not None
            receiver.add(chunk)
        receiver.finish()

    copy = best_seconds(lambda: np.copyto(into, flat))
    rows = {
        "copy": copy,
        "encode": best_seconds(lambda: sum(len(frame.data) for frame in chunk_frames(layout, flat))),
        "parse and check": best_seconds(receive),
    }
    overhead = sum(map(len, frames)) - layout.payload_bytes(Purpose.MODEL)
    print(f"{layout.num_bytes / 1e6:.1f} MB of float32 in {len(frames)} chunks, {overhead} bytes of framing")
    show(rows)


if __name__ == "__main__":
    main()
