"""What does it cost to count every message of an update, and to capture it, against copying it?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.bundles import bundles
from common.wire.byte_counts import ByteCounts
from common.wire.capture import CaptureWriter
from common.wire.encoding import Encoding
from common.wire.manifest import manifest
from common.wire.messages import CallFollower, ClassifiedMessage
from fedpvr.v1 import federation_pb2 as pb
from measure import report
from measure.timing import best_of_each

ELEMENTS = 9_750_922
"""VGG-11."""


def main() -> None:
    """Measures and prints."""
    arguments = report.parser(__doc__).parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    elements, repeats = (ELEMENTS // 100, 2) if arguments.quick else (ELEMENTS, 9)
    layout = Layout([TensorSpec("w", "float32", (elements,), Purpose.MODEL)])
    flat, into = layout.allocate(), layout.allocate()
    layout.array(flat, 0)[:] = np.random.default_rng(0).normal(size=elements)
    header = pb.UpdateHeader(client="a", round=1, tensors=manifest(Encoding(layout)))
    frames = [pb.UpdateFrame(header=header).SerializeToString()]
    frames += [bundle.data for bundle in bundles(layout, flat)]
    counts = ByteCounts()

    def count(message: ClassifiedMessage) -> None:
        counts.add("a", "PushUpdate", message.up, message.content, len(message.data))

    def counted() -> None:
        follower = CallFollower("PushUpdate", count)
        for frame in frames:
            follower.note(True, frame)

    with tempfile.TemporaryDirectory() as folder:

        def captured() -> None:
            path = Path(folder) / "c.fedwire"
            path.unlink(missing_ok=True)
            writer = CaptureWriter(path, print)
            follower = CallFollower("PushUpdate", lambda message: writer.write("PushUpdate", 0, message))
            for frame in frames:
                follower.note(True, frame)
            writer.close()

        seconds = best_of_each(
            {"copy": lambda: np.copyto(into, flat), "count": counted, "count and capture": captured}, repeats
        )
    found.times(f"{layout.num_bytes / 1e6:.1f} MB of float32 in {len(frames)} messages", seconds)
    found.ratio("count / copy", seconds["count"] / seconds["copy"])
    found.ratio("count and capture / copy", seconds["count and capture"] / seconds["copy"])
    found.finish()


if __name__ == "__main__":
    main()
