"""What items would run, and how long it would take: images that are trained on and evaluated, over a rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.errors import ConfigError
from common.models.names import BUILT_IN
from fedlab.paper.catalogue import Item
from fedlab.paper.data import DATA
from fedlab.paper.reproduce import runs_of
from fedlab.paper.study import Study, Wanted

FORMULA = (
    "seconds = (images trained on + images evaluated) / images per second; an evaluated image counts as "
    "a trained one, which it is not (a third of it at most), and transfers, set-up and waiting do not "
    "count"
)


@dataclass(frozen=True, kw_only=True)
class CostedRun:
    """A run, and how much there is to do in it."""

    key: str
    settings: Mapping[str, object]
    model: str
    trained: int
    """Images, over all clients and rounds; an image of every epoch counts."""
    evaluated: int

    @property
    def images(self) -> int:
        """All of them."""
        return self.trained + self.evaluated


@dataclass(frozen=True, kw_only=True)
class PlannedItem:
    """An item and its runs."""

    name: str
    runs: tuple[CostedRun, ...]
    """All that it needs; some of them other items need too."""
    new: int
    """Those that no item before it needs."""


def plan(items: Sequence[Item], study: Study, chosen: Sequence[str]) -> list[PlannedItem]:
    """What each of the items needs, in their order."""
    seen: set[str] = set()
    found = []
    for item in items:
        runs = tuple(planned(each) for each in runs_of(item, study, chosen))
        new = sum(run.key not in seen for run in runs)
        seen |= {run.key for run in runs}
        found.append(PlannedItem(name=item.name, runs=runs, new=new))
    return found


def distinct(planned_items: Sequence[PlannedItem]) -> list[CostedRun]:
    """All runs, each once."""
    return list({run.key: run for item in planned_items for run in item.runs}.values())


def planned(wanted: Wanted) -> CostedRun:
    """How many images a run trains on and evaluates."""
    said = wanted.settings
    size = DATA[str(said["dataset"])]
    clients, rounds, batch = (int(str(said[name])) for name in ("num_clients", "rounds", "batch_size"))
    shard = (wanted.shards.examples if wanted.shards else size.train) // clients
    kept = min(round(float(str(said.get("validation", 0.0))) * shard), shard - 1)
    own = shard - kept
    in_epoch = own // batch * batch or own
    local = int(str(said["local_steps"])) * min(batch, own) if "local_steps" in said else 0
    per_round = local or int(str(said["local_epochs"])) * in_epoch
    every = int(str(said.get("eval_every", 1)))
    evaluations = -(-rounds // every) if every else 1
    return CostedRun(
        key=wanted.cell.key,
        settings=said,
        model=str(said["model"]),
        trained=rounds * clients * per_round,
        evaluated=evaluations * (size.test + clients * int(str(said.get("cka", 0))))
        + rounds * clients * kept,
    )


def seconds(runs: Sequence[CostedRun], rates: Mapping[str, float]) -> float:
    """How long runs take one after the other, at so many images per second of each model."""
    return sum(run.images / rates[run.model] for run in runs)


def rates(given: Sequence[str], models: Sequence[str]) -> dict[str, float]:
    """Images per second by model, from what `--device-rate` says: for all models, or MODEL=RATE."""
    found: dict[str, float] = {}
    for text in given:
        model, equals, number = text.rpartition("=")
        try:
            rate = float(number)
        except ValueError:
            rate = 0.0
        if rate <= 0 or (equals and model not in BUILT_IN):
            raise ConfigError(
                f"--device-rate must be IMAGES_PER_SECOND or MODEL=IMAGES_PER_SECOND, got {text!r}"
            )
        found |= dict.fromkeys([model] if equals else models, rate)
    missing = [model for model in models if model not in found]
    if given and missing:
        raise ConfigError(f"--device-rate says nothing of {', '.join(missing)}; give {missing[0]}=RATE too")
    return found
