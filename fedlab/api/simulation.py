"""Simulations started by a program, with models and data of its own."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from common import plugin
from common.devices.names import CPU, OFF, require_device, require_precision
from common.events import Emit, to_all, unheard
from common.processes.background import Background
from fedlab.api.bar import bar
from fedlab.api.run import Run
from fedserver.api.settings import Settings, configured

if TYPE_CHECKING:
    from torch import nn

    from common.data.given import Examples
    from fedserver.config import RunConfig

    Model = str | nn.Module | Callable[[int], nn.Module]
    Data = str | Mapping[str, Examples] | Callable[[str], Examples]


def simulate(
    *,
    model: Model | None = None,
    dataset: Data | None = None,
    run_dir: str | Path | None = None,
    on_event: Emit = unheard,
    progress: bool | None = None,
    device: str = CPU,
    autocast: str = OFF,
    jobs: int = 1,
    resume: bool = True,
    **settings: Unpack[Settings],
) -> Run:
    """Trains a whole federation in this process and returns the run; Ctrl-C ends it.

    Settings are those of `fedserver run`. `model` is a name, a module (which is copied and trained from its
    weights) or what makes one of a number of classes; `dataset` is a name, {"train": (images, labels),
    "test": ...} or what makes such a pair of a split's name. `device` and `autocast` are as for the flags.
    `jobs` clients train at the same time, each in a process that is forked from this one; `resume` goes on
    with a run that was begun in `run_dir`.
    """
    return start(
        model=model,
        dataset=dataset,
        run_dir=run_dir,
        on_event=on_event,
        progress=progress,
        device=device,
        autocast=autocast,
        jobs=jobs,
        resume=resume,
        **settings,
    ).wait()


def start(
    *,
    model: Model | None = None,
    dataset: Data | None = None,
    run_dir: str | Path | None = None,
    on_event: Emit = unheard,
    progress: bool | None = None,
    device: str = CPU,
    autocast: str = OFF,
    jobs: int = 1,
    resume: bool = True,
    **settings: Unpack[Settings],
) -> Simulation:
    """The same in the background: what it returns can be waited for and cancelled."""
    where = require_device(device), require_precision(autocast)
    with ExitStack() as stack:
        factory = None if model is None or isinstance(model, str) else _factory(model)
        lent = model if factory is None else stack.enter_context(plugin.lent(_name(model, "model"), factory))
        data = dataset
        if data is not None and not isinstance(data, str):
            data = stack.enter_context(_lent_data(data))
        config = configured(settings, model=lent, dataset=data)  # type: ignore[arg-type]
        path = Path(run_dir) if run_dir is not None else _new_folder(config.algorithm)
        held = stack.pop_all()
    work = partial(_work, config, path, held, on_event, progress, *where, jobs, resume)
    return Simulation(path, factory, work)


class Simulation:
    """A simulation that goes on."""

    def __init__(
        self,
        path: Path,
        factory: Callable[[int], nn.Module] | None,
        work: Callable[[], None],
    ) -> None:
        """`work` is all of it; `factory` makes the model, where the caller lent one."""
        self.path = path
        self._factory = factory
        self._background = Background("the simulation", work)

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._background.done

    def run(self) -> Run:
        """The rounds that have closed so far; raises before the first."""
        return Run(self.path, self._factory)

    def wait(self, timeout_s: float | None = None) -> Run:
        """The run, once it is over; raises what ended it early. Ctrl-C while waiting cancels it."""
        self._background.wait(timeout_s)
        return self.run()

    def cancel(self) -> None:
        """Lets it end, which `wait` then tells; the rounds that have closed stay in its directory."""
        self._background.cancel()

    def __repr__(self) -> str:
        return f"Simulation({str(self.path)!r}, {'ended' if self.done else 'running'})"


def _work(
    config: RunConfig,
    path: Path,
    held: ExitStack,
    on_event: Emit,
    progress: bool | None,
    device: str,
    autocast: str,
    jobs: int,
    resume: bool,
) -> None:
    """`held` keeps what the caller lent, until the end."""
    import torch

    from common.data import datasets
    from common.devices.choice import on_devices
    from fedlab.simulation import simulate as run_simulation

    before = torch.get_num_threads()
    try:
        with held, bar(config, progress) as moved:
            emit, where = to_all(moved, on_event), on_devices(device, autocast)
            run_simulation(config, path, emit, where, jobs=jobs, resume=resume)
    finally:
        datasets.forget()
        torch.set_num_threads(before)


def _factory(model: nn.Module | Callable[[int], nn.Module]) -> Callable[[int], nn.Module]:
    from torch import nn

    return (lambda num_classes: copy.deepcopy(model)) if isinstance(model, nn.Module) else model


@contextmanager
def _lent_data(data: Mapping[str, Examples] | Callable[[str], Examples]) -> Iterator[str]:
    from common.data.given import arrays

    def split(name: str) -> tuple[Any, ...]:
        return arrays(data[name] if isinstance(data, Mapping) else data(name))

    with plugin.lent("data", split) as name:
        yield name


def _name(model: object, otherwise: str) -> str:
    kind = model if callable(model) and hasattr(model, "__name__") else type(model)
    found = getattr(kind, "__name__", otherwise)
    return found if found.isidentifier() else otherwise


def _new_folder(algorithm: str) -> Path:
    """A new one in runs/, also for several that start in one second."""
    Path("runs").mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{time.strftime('%Y%m%d-%H%M%S')}-{algorithm}-", dir="runs"))
