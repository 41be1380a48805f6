"""What runs under an allocator that checks the heap: python -m tests.heap overrun | train CASE...

A case is MODEL,WIDTH,DATA. The environment is `CHECKING`: a process that has written beside its memory is
ended by the allocator with SIGABRT, and freed and fresh memory is full of rubbish.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

CHECKING = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}
"""glibc has its checks in a library of their own since 2.34; the first name is ignored before."""
EXAMPLES = 40


def under_checks(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """This program in a child with a checked heap."""
    return subprocess.run(
        [sys.executable, "-m", "tests.heap", *arguments],
        env=os.environ | CHECKING | environment,
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )


def overrun() -> None:
    """Writes one byte behind a block, as no program should."""
    allocate, free = ctypes.pythonapi.PyMem_RawMalloc, ctypes.pythonapi.PyMem_RawFree
    allocate.restype, allocate.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    block = allocate(24)
    ctypes.memset(block + 24, 0, 1)
    free(block)


def train(model: str, width: float, data: str) -> None:
    """Two steps of a client on the strides that a data set of this shape has, then an evaluation."""
    import numpy as np
    import torch

    from common.data import datasets
    from common.data.batches import Batches
    from common.evaluate import evaluate
    from common.models.build import build_model, tensor_specs
    from common.models.memory_format import memory_format
    from common.models.spec import ModelSpec
    from common.tensors.layout import Layout
    from common.tensors.torch_views import flatten
    from common.wire.encoding import Encoding
    from fedclient.training.task import Task
    from fedclient.training.train import Trainer
    from tests.rules import rules

    torch.set_num_threads(1)
    if data == "digits":
        dataset = datasets.load("digits", "train").subset(np.arange(EXAMPLES))
    else:
        pictures = np.random.default_rng(0).integers(0, 256, (EXAMPLES, 32, 32, 3), np.uint8)
        labels, names = np.arange(EXAMPLES) % 10, datasets.numbered(10)
        dataset = datasets.Dataset(data, pictures.transpose(0, 3, 1, 2), labels, names)
    spec = ModelSpec(name=model, num_classes=10, image_shape=dataset.image_shape, width=width)
    network = build_model(spec, 0)
    layout = Layout(tensor_specs(network))
    x = flatten(network, layout)
    batches = Batches(dataset, memory_format=memory_format(network, dataset.image_shape))
    settings = rules(algorithm="fedavg", local_epochs=None, local_steps=2, batch_size=EXAMPLES // 2)
    task = Task(rules=settings, layout=layout, broadcast=x, encoding=Encoding(layout))
    Trainer(network, batches, seed=0, index=0).train(task, task.state_layout.allocate())
    evaluate(network, batches)


def main() -> None:
    """What the arguments ask for."""
    if sys.argv[1] == "overrun":
        overrun()
    for case in sys.argv[2:]:
        print(case, flush=True)
        model, width, data = case.split(",")
        train(model, float(width), data)


if __name__ == "__main__":
    main()
