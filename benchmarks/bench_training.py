"""How fast does a client train against a bare loop, and ten of one machine against the best arrangement?

A bare loop has a model of its own, takes batches of 64 from uint8 images in memory, normalises them and
steps with `torch._foreach_add_`, in the memory format in which it is faster. A client's round is the whole of
`Trainer.train`: from the broadcast to the encoded update. One thread each, by processor time.

Ten processes train a round each: all at once, through the gate, and, for the best arrangement, by as many
processes as there are cores that share the work out evenly. Variants are measured in turn, forwards and
backwards, and a ratio is the median of those of neighbours: what others do on the machine passes all alike.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from common.data.batches import Batches
from common.data.datasets import Dataset, numbered
from common.models.build import build_model, classifier_names, tensor_specs
from common.models.memory_format import memory_format
from common.models.spec import ModelSpec
from common.server_step.rules import Rules
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.tensors.torch_views import flatten
from common.wire.encoding import Encoding
from fedclient.training.core_gate import free_cores
from fedclient.training.task import Task
from fedclient.training.train import Trainer
from measure import report

BATCH, EXAMPLES, CLIENTS = 64, 1024, 10
SHAPE, CLASSES, ETA_L = (3, 32, 32), 10, 0.01
STEPS = {"resnet8": 12, "vgg11": 8}
REPEATS = 7


@dataclass
class Taken:
    """What runs of one variant took, in seconds."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


def pictures() -> Dataset:
    """A shard of the shape of CIFAR-10."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (EXAMPLES, *SHAPE), np.uint8)
    return Dataset("noise", images, random.integers(0, CLASSES, EXAMPLES), numbered(CLASSES))


def built(model: str) -> nn.Module:
    """As a client builds it."""
    return build_model(ModelSpec(name=model, num_classes=CLASSES, image_shape=SHAPE), 0)


def bare_loop(model: str, steps: int, order: torch.memory_format) -> Callable[[], object]:
    """What somebody writes who wants nothing but to train."""
    data, network = pictures(), built(model).train()
    network = network.to(memory_format=order)  # type: ignore[call-overload]
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    mean, std = (torch.tensor(each).view(1, -1, 1, 1) for each in (data.mean, data.std))
    parameters = list(network.parameters())

    def loop() -> float:
        total = 0.0
        permutation = torch.randperm(EXAMPLES)
        for k in range(steps):
            chosen = permutation[k * BATCH : (k + 1) * BATCH]
            batch = images.index_select(0, chosen).float().div_(255).sub_(mean).div_(std)
            scores = network(batch.contiguous(memory_format=order))
            loss = F.cross_entropy(scores, labels[chosen])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-ETA_L)
            total += loss.item()
        return total

    return loop


def client(model: str, steps: int, algorithm: str) -> Callable[[], object]:
    """A round of a client."""
    network, data = built(model), pictures()
    specs = tensor_specs(network)
    reduced = classifier_names(network) if algorithm == "fedpvr" else []
    control = [TensorSpec(s.name, s.dtype, s.shape, Purpose.CONTROL) for s in specs if s.name in reduced]
    layout = Layout([*specs, *control])
    broadcast, x = layout.allocate(), flatten(network, Layout(specs))
    broadcast[: len(x)] = x
    rules = Rules(
        round=1,
        rounds=1,
        eta_l=ETA_L,
        algorithm=algorithm,
        num_clients=CLIENTS,
        local_steps=steps,
        batch_size=BATCH,
    )
    task = Task(rules=rules, layout=layout, broadcast=broadcast, encoding=Encoding(layout))
    batches = Batches(data, memory_format=memory_format(network, SHAPE))
    trainer, state = Trainer(network, batches, 0, 0), task.state_layout.allocate()
    return lambda: trainer.train(task, state)


def interleaved(variants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Taken]:
    """All of them in turn, there and back again, after one run of each that does not count.

    A client gives free memory back after a round; so that it is no gift to the next, all begin without any.
    """
    taken = {name: Taken() for name in variants}
    for run in range(repeats + 1):
        for name, work in list(variants.items())[:: -1 if run % 2 else 1]:
            ctypes.CDLL(None).malloc_trim(0)
            cpu, wall = time.process_time(), time.perf_counter()
            work()
            if run:
                taken[name].cpu.append(time.process_time() - cpu)
                taken[name].wall.append(time.perf_counter() - wall)
    return taken


def times_as_long(theirs: list[float], ours: list[float]) -> float:
    """How many times as long theirs took: the median over runs that were made in turn."""
    return median(a / b for a, b in zip(theirs, ours, strict=True))


def best_bare_loop(model: str, steps: int) -> tuple[str, Callable[[], object]]:
    """In the memory format in which a few steps take less."""
    orders = {"row-major": torch.contiguous_format, "channels_last": torch.channels_last}
    tried = {name: bare_loop(model, 2, order) for name, order in orders.items()}
    taken = interleaved(tried, 2)
    best = min(orders, key=lambda name: median(taken[name].cpu))
    return f"bare, {best}", bare_loop(model, steps, orders[best])


def steps_of_a_client(found: report.Report, model: str, steps: int, repeats: int) -> None:
    """A client against bare loops."""
    bare, loop = best_bare_loop(model, steps)
    taken = interleaved(
        {bare: loop, "fedavg": client(model, steps, "fedavg"), "fedpvr": client(model, steps, "fedpvr")},
        repeats,
    )
    for name, each in taken.items():
        found.row(
            f"{model}, {BATCH} images a step",
            what=name,
            cpu_ms=min(each.cpu) / steps * 1e3,
            median_cpu_ms=median(each.cpu) / steps * 1e3,
            wall_ms=min(each.wall) / steps * 1e3,
            images_per_cpu_s=BATCH * steps / min(each.cpu),
        )
    best, fedavg, fedpvr = (each.cpu for each in taken.values())
    speed = times_as_long(best, fedavg)
    found.ratio(f"{model}: speed / bare loop's in its best format", speed, at_least=0.98)
    found.ratio(f"{model}: FedPVR's time / FedAvg's", times_as_long(fedpvr, fedavg), at_most=1.01)


class Crew:
    """Processes with a client each, which train when they are told to."""

    def __init__(self, model: str, steps: int, stack: ExitStack) -> None:
        self.members: list[Connection[Any, Any]] = []
        for _ in range(CLIENTS):
            ours, theirs = Pipe()
            process = os.fork()
            if process == 0:
                ours.close()
                self._serve(theirs, client(model, steps, "fedavg"))
            theirs.close()
            self.members.append(ours)
            stack.callback(os.waitpid, process, 0)
            stack.callback(ours.close)
        self.ask(CLIENTS, 1, gated=True)

    def _serve(self, orders: Connection[Any, Any], work: Callable[[], object]) -> None:
        """Rounds as they are asked for, until the asking side is gone; never returns."""
        for member in self.members:
            member.close()
        try:
            while True:
                rounds, gated = orders.recv()
                start = time.process_time()
                for _ in range(rounds):
                    with ExitStack() as stack:
                        if gated:
                            stack.enter_context(free_cores(1))
                        work()
                orders.send(time.process_time() - start)
        except EOFError:
            os._exit(0)
        finally:
            os._exit(1)

    def ask(self, processes: int, rounds: int, *, gated: bool) -> tuple[float, float]:
        """Seconds of CPU and of the clock until all of these processes have trained so many rounds each."""
        wall = time.perf_counter()
        for member in self.members[:processes]:
            member.send((rounds, gated))
        cpu: float = sum(member.recv() for member in self.members[:processes])
        return cpu, time.perf_counter() - wall


def clients_of_a_machine(found: report.Report, model: str, steps: int, repeats: int) -> None:
    """Ten processes on the cores that there are."""
    cores = min(len(os.sched_getaffinity(0)), CLIENTS)
    with ExitStack() as stack:
        # A gate of its own: others who train on this machine have theirs.
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
        tempfile.tempdir = folder
        crew = Crew(model, steps, stack)
        arrangements = {
            f"{cores} processes, {CLIENTS / cores:g} rounds each": (cores, CLIENTS // cores, False),
            f"{CLIENTS} clients through the gate": (CLIENTS, 1, True),
            f"{CLIENTS} clients at once": (CLIENTS, 1, False),
        }
        taken = {name: Taken() for name in arrangements}
        for run in range(repeats):
            for name, (processes, rounds, gated) in list(arrangements.items())[:: -1 if run % 2 else 1]:
                cpu, wall = crew.ask(processes, rounds, gated=gated)
                taken[name].cpu.append(cpu)
                taken[name].wall.append(wall)
    images = CLIENTS // cores * cores * steps * BATCH
    for name, each in taken.items():
        found.row(
            f"{model}, {CLIENTS} rounds of {steps} steps on {cores} cores",
            what=name,
            cpu_s=min(each.cpu),
            wall_s=min(each.wall),
            images_per_s=images / min(each.wall),
        )
    best, gate, at_once = taken.values()
    speed = times_as_long(best.wall, gate.wall)
    found.ratio(f"{model}: ten clients' speed / the best arrangement's", speed, at_least=0.95)
    found.ratio(f"{model}: ten clients' speed / without the gate", times_as_long(at_once.wall, gate.wall))


def main() -> None:
    """Measures and prints."""
    arguments = report.parser(__doc__).parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    torch.set_num_threads(1)
    quick = arguments.quick
    # Forked before this process has trained: what it keeps in memory they need not have.
    clients_of_a_machine(found, "resnet8", 2 if quick else 6, 2 if quick else 4)
    if not quick:
        clients_of_a_machine(found, "vgg11", 2, 2)
    for model, steps in STEPS.items():
        steps_of_a_client(found, model, steps // 4 if quick else steps, 2 if quick else REPEATS)
    found.finish()


if __name__ == "__main__":
    main()
