"""How small, how fast and how exact are the codecs on an update, against sending it as it is?"""

from __future__ import annotations

import numpy as np

from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.encoding import upward
from timing import best_seconds, show

SHAPES = [(512, 512, 3, 3)] * 3 + [(512, 512), (10, 512)]
CODECS = ("fp16", "bf16", "int8", "int8-tensor", "topk:0.05")


def main() -> None:
    """Measures and prints."""
    layout = Layout(TensorSpec(f"w{k}", "float32", s, Purpose.MODEL) for k, s in enumerate(SHAPES))
    random = np.random.default_rng(0)
    x, delta = layout.allocate(), layout.allocate()
    for k, spec in enumerate(layout.specs):
        layout.array(x, k)[...] = random.normal(scale=0.05, size=spec.shape)
        # Heavy tails, as differences have them.
        layout.array(delta, k)[...] = 1e-3 * random.standard_t(4, size=spec.shape)
    y = (x.view(np.float32) + delta.view(np.float32)).view(np.uint8)
    rows = {"copy": best_seconds(lambda: y.copy())}
    print("codec         of the bytes   error of y - x")
    for name in CODECS:
        encoding = upward(layout, name, "fp32")
        values = y.copy()
        raw = encoding.encode_in_place(values, random, x, encoding.residuals.allocate())
        error = np.linalg.norm(values.view(np.float32) - y.view(np.float32))
        norm = np.linalg.norm(y.view(np.float32) - x.view(np.float32))
        print(f"{name:12}  {len(raw) / len(y):12.4f}   {error / norm:14.2e}")
        rows[f"{name}, send"] = best_seconds(
            lambda c=encoding: c.encode_in_place(y.copy(), random, x, c.residuals.allocate())  # type: ignore[misc]
        )
        rows[f"{name}, receive"] = best_seconds(lambda c=encoding, r=raw: c.decode(r, x))  # type: ignore[misc]
    print(f"{layout.num_bytes / 1e6:.1f} MB of float32")
    show(rows)


if __name__ == "__main__":
    main()
