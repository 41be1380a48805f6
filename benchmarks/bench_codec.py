"""How small, how fast and how exact are the codecs on an update, against sending it as it is?"""

from __future__ import annotations

import numpy as np

from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.encoding import upward
from measure import report
from measure.timing import best_seconds

SHAPES = [(512, 512, 3, 3)] * 3 + [(512, 512), (10, 512)]
CODECS = ("fp16", "bf16", "int8", "int8-tensor", "topk:0.05")


def main() -> None:
    """Measures and prints."""
    arguments = report.parser(__doc__).parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    shapes, repeats = (SHAPES[-2:], 1) if arguments.quick else (SHAPES, 3)
    layout = Layout(TensorSpec(f"w{k}", "float32", s, Purpose.MODEL) for k, s in enumerate(shapes))
    random = np.random.default_rng(0)
    x, delta = layout.allocate(), layout.allocate()
    for k, spec in enumerate(layout.specs):
        layout.array(x, k)[...] = random.normal(scale=0.05, size=spec.shape)
        # Heavy tails, as differences have them.
        layout.array(delta, k)[...] = 1e-3 * random.standard_t(4, size=spec.shape)
    y = (x.view(np.float32) + delta.view(np.float32)).view(np.uint8)
    copy = best_seconds(lambda: y.copy(), repeats)
    table = f"an update of {layout.num_bytes / 1e6:.1f} MB of float32"
    found.row(table, codec="none, copied", of_the_bytes=1.0, error_of_move=0.0, send_ms=copy * 1e3)
    for name in CODECS:
        encoding = upward(layout, name, "fp32")
        values = y.copy()
        raw = encoding.encode_in_place(values, random, x, encoding.residuals.allocate())
        error = np.linalg.norm(values.view(np.float32) - y.view(np.float32))
        norm = np.linalg.norm(y.view(np.float32) - x.view(np.float32))
        send = best_seconds(
            lambda c=encoding: c.encode_in_place(y.copy(), random, x, c.residuals.allocate()),  # type: ignore[misc]
            repeats,
        )
        receive = best_seconds(lambda c=encoding, r=raw: c.decode(r, x), repeats)  # type: ignore[misc]
        found.row(
            table,
            codec=name,
            of_the_bytes=len(raw) / len(y),
            error_of_move=float(error / norm),
            send_ms=send * 1e3,
            receive_ms=receive * 1e3,
        )
        found.ratio(f"{name}, send and receive / copy", (send + receive) / copy)
    found.finish()


if __name__ == "__main__":
    main()
