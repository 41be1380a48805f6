"""What does it cost to count every message of an update, and to capture it, against copying it?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from common.bytecount import Counts
from common.capture import CaptureWriter
from common.coding import Coding
from common.dialogue import Followed, Passed
from common.manifest import manifest
from common.tensors import Layout, Purpose, TensorSpec
from common.wire import chunk_frames
from fedpvr.v1 import federation_pb2 as pb
from timing import best_seconds, show

ELEMENTS = 9_250_000


def main() -> None:
    """Measures and prints."""
    layout = Layout([TensorSpec("w", "float32", (ELEMENTS,), Purpose.MODEL)])
    flat, into = layout.allocate(), layout.allocate()
    layout.array(flat, 0)[:] = np.random.default_rng(0).normal(size=ELEMENTS)
    header = pb.UpdateHeader(client="a", round=1, tensors=manifest(Coding(layout)))
    frames = [pb.UpdateFrame(header=header).SerializeToString()]
    frames += [frame.data for frame in chunk_frames(layout, flat)]
    counts = Counts()

    def count(passed: Passed) -> None:
        counts.add("a", "PushUpdate", passed.up, passed.entry, len(passed.data))

    def counted() -> None:
        followed = Followed("PushUpdate", count)
        for frame in frames:
            followed.note(True, frame)

    with tempfile.TemporaryDirectory() as folder:

        def captured() -> None:
            path = Path(folder) / "c.fedwire"
            path.unlink(missing_ok=True)
            writer = CaptureWriter(path, print)
            followed = Followed("PushUpdate", lambda passed: writer.write("PushUpdate", 0, passed))
            for frame in frames:
                followed.note(True, frame)
            writer.close()

        rows = {
            "copy": best_seconds(lambda: np.copyto(into, flat)),
            "count": best_seconds(counted),
            "count and capture": best_seconds(captured),
        }
    print(f"{layout.num_bytes / 1e6:.1f} MB of float32 in {len(frames)} messages")
    show(rows)


if __name__ == "__main__":
    main()
