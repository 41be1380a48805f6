"""A 1x1 convolution with stride 2 overruns its memory when it computes the gradient of its weights.

oneDNN's `jit_1x1:avx2`, backward_weights, source in channels_last (`acdb`), fewer than 8 input channels:

    python docs/upstream/onednn_strided_1x1.py

Seen with torch 2.13.0+cpu (oneDNN 3.12.0) on x86-64. With AVX-512 another kernel is taken; the environment
below asks for the one of AVX2 machines. The allocator checks what lies behind each block when it is freed; it
is that of glibc from 2.34 on, earlier ones need no LD_PRELOAD. Forward, the gradient of the input, stride 1,
8 channels and more, and row-major input were run in the same way and overran nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys

CHECKED = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "LD_PRELOAD": "libc_malloc_debug.so.0",
    "MALLOC_CHECK_": "3",
    "MALLOC_PERTURB_": "165",
}


def backward_weights(channels: int, stride: int, channels_last: bool) -> None:
    """The gradient of the weights alone, of a batch of 8 images of 8x8."""
    import torch

    torch.set_num_threads(1)
    size = 8 // stride
    images, grad, weight = (
        torch.randn(8, channels, 8, 8),
        torch.randn(8, 8, size, size),
        torch.randn(8, channels, 1, 1),
    )
    if channels_last:
        # With one channel this is what a row-major array looks like that had no axis for channels.
        images = images.to(memory_format=torch.channels_last).as_strided(
            images.shape, (64 * channels, 1, 8 * channels, channels)
        )
        grad = grad.to(memory_format=torch.channels_last)
    for _ in range(5):
        torch.ops.aten.convolution_backward(
            grad,
            images,
            weight,
            [0],
            [stride, stride],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
            [False, True, False],
        )


def main() -> None:
    """Every case in a process of its own."""
    if len(sys.argv) > 1:
        channels, stride, last = map(int, sys.argv[1:])
        backward_weights(channels, stride, bool(last))
        return
    for case in ((1, 2, 1), (4, 2, 1), (4, 1, 1), (8, 2, 1), (1, 2, 0), (4, 2, 0)):
        command = [sys.executable, __file__, *map(str, case)]
        child = subprocess.run(command, env=os.environ | CHECKED, capture_output=True, text=True)
        channels, stride, last = case
        strides = "channels_last" if last else "row-major"
        said = child.stderr.strip().splitlines()[-1:] or ["nothing found"]
        print(f"{channels} channels, stride {stride}, {strides:13}: exit code {child.returncode}, {said[0]}")


if __name__ == "__main__":
    main()
