"""How long does a model take through the wire codec, against copying it?"""

from __future__ import annotations

import numpy as np

from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.bundles import bundles, frames_in
from common.wire.chunks import read_chunk
from common.wire.receiver import Receiver
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
    messages = [bundle.data for bundle in bundles(layout, flat)]

    def receive() -> None:
        receiver = Receiver(layout, into)
        for frame in (frame for message in messages for frame in frames_in(message)):
            chunk = read_chunk(frame)
            assert chunk is not None
            receiver.add(chunk)
        receiver.finish()

    seconds = best_of_each(
        {
            "copy": lambda: np.copyto(into, flat),
            "encode": lambda: sum(len(bundle.data) for bundle in bundles(layout, flat)),
            "parse and check": receive,
        },
        repeats,
    )
    overhead = sum(map(len, messages)) - layout.payload_bytes(Purpose.MODEL)
    found.row("messages", MB=layout.num_bytes / 1e6, messages=len(messages), framing_bytes=overhead)
    found.times("best of each", seconds)
    found.ratio("encode / copy", seconds["encode"] / seconds["copy"])
    found.ratio("parse and check / copy", seconds["parse and check"] / seconds["copy"])
    found.finish()


if __name__ == "__main__":
    main()
