"""How large an experiment is: `tiny` for two cores and minutes, `small` for hours, `paper` as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedlab.experiments.methods import METHODS
from fedlab.paper import published
from fedlab.paper.columns import Column
from fedserver import presets

Settings = Mapping[str, object]
"""Of a run, by name."""


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """What stands for a data set and a model of the paper."""

    dataset: str
    model: str
    target: float
    """Accuracy that table 2 counts the rounds to."""
    options: Settings = field(default_factory=dict)
    """Settings of these runs alone."""
    examples: int | None = None
    """How many training examples are shared out, from the first on; None: all."""

    @property
    def words(self) -> str:
        """What it is, for a page."""
        some = f"the first {self.examples:,} of " if self.examples else ""
        size = self.options.get("image_size")
        width = self.options.get("width")
        return (
            f"{some}{self.dataset}{f' at {size}x{size}' if size else ''}, {self.model}"
            f"{f' of width {width}' if width else ''}"
        )


@dataclass(frozen=True, kw_only=True)
class Central:
    """The centralised baseline: rounds of several epochs, of one client that has everything."""

    rounds: int
    local_epochs: int
    """Epochs between two evaluations. Momentum starts at zero after each of them, as in a federation."""
    eta_l: tuple[float, ...] = published.CENTRAL_ETA
    momentum: tuple[float, ...] = published.CENTRAL_MOMENTUM
    validation: float = 0.01

    @property
    def epochs(self) -> int:
        """In all."""
        return self.rounds * self.local_epochs

    @property
    def grid(self) -> list[tuple[float, float]]:
        """eta_l and momentum that are tried."""
        return [(eta, momentum) for eta in self.eta_l for momentum in self.momentum]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What the runs of a scale have in common."""

    name: str
    text: str
    """What it is, and what it is not."""
    rounds: int
    """Table 2 counts rounds up to here, and figures go as far."""
    at_round: int
    """After which table 3 and figures 3 and C.4 look at x."""
    central: Central
    settings: Settings = field(default_factory=dict)
    stand_ins: Mapping[tuple[str, str], StandIn] = field(default_factory=dict)
    """By the paper's data set and model; none where the paper's own are run."""
    cka: int = 512
    """Test images on which client models are compared."""

    def stand_in(self, column: Column) -> StandIn:
        """What stands for a column; at the paper's scale it stands for itself."""
        as_published = StandIn(
            dataset=column.dataset, model=column.model, target=published.TARGETS[column.dataset]
        )
        return self.stand_ins.get((column.dataset, column.model), as_published)

    def federated(self, column: Column, method: str, seed: int) -> dict[str, object]:
        """The flags of a run, without where its data and shards are."""
        stand_in = self.stand_in(column)
        found: dict[str, object] = dict(METHODS[method])
        if self.stand_ins:
            found |= {"dataset": stand_in.dataset, "model": stand_in.model, "alpha": column.alpha}
        else:
            preset = nearest_preset(column)
            found |= {"preset": preset} | ({} if preset == column.name else {"alpha": column.alpha})
        return found | {"seed": seed, "rounds": self.rounds} | dict(self.settings) | dict(stand_in.options)

    def centralised(self, column: Column, eta_l: float, momentum: float, seed: int) -> dict[str, object]:
        """The flags of a run of the baseline, which has no alpha."""
        stand_in = self.stand_in(column)
        batch = self.resolved(self.federated(column, "fedavg", seed))["batch_size"]
        return {
            "algorithm": "fedavg",
            "dataset": stand_in.dataset,
            "model": stand_in.model,
            "num_clients": 1,
            "seed": seed,
            "rounds": self.central.rounds,
            "local_epochs": self.central.local_epochs,
            "batch_size": batch,
            "validation": self.central.validation,
            **{
                name: value for name, value in stand_in.options.items() if name not in ("batch_size", "eta_l")
            },
            "eta_l": eta_l,
            "momentum": momentum,
        }

    def resolved(self, flags: Settings) -> dict[str, object]:
        """The settings that flags and preset add up to, without defaults."""
        preset = flags.get("preset")
        below = presets.settings(str(preset), str(flags["algorithm"])) if preset else {}
        own = {name: value for name, value in flags.items() if name != "preset"}
        found: dict[str, object] = {**below, **own}
        if "local_steps" in own:
            found.pop("local_epochs", None)
        return found


def nearest_preset(column: Column) -> str:
    """The preset of a column; of one that has only another alpha than the paper's, that of its first."""
    if column.name in presets.NAMES:
        return column.name
    return next(name for name in presets.NAMES if name.startswith(f"{column.dataset}-{column.model}-a"))


def _both(dataset: str, **models: StandIn) -> dict[tuple[str, str], StandIn]:
    """Stand-ins for the models of a data set; BatchNorm takes the place of GroupNorm in its own columns."""
    found = {(dataset, name): stand_in for name, stand_in in models.items()}
    group = models["resnet8"]
    found[dataset, "resnet8-bn"] = StandIn(
        dataset=group.dataset,
        model="resnet8-bn",
        target=group.target,
        options=group.options,
        examples=group.examples,
    )
    return found


_TINY_FEW: Settings = {"batch_size": 16}
_SMALL: Settings = {"image_size": 16, "augment": False}
_NARROW: Settings = {"width": 0.25}

TINY = Scale(
    name="tiny",
    text="Not the paper's data: 1,437 handwritten digits of 8x8 pixels stand for CIFAR-10 and the first "
    "400 of them for CIFAR-100, which has a tenth of CIFAR-10's images per class. A network of two "
    "convolutions stands for VGG-11, ResNet-8 of a quarter of its width for ResNet-8. Nobody has "
    "momentum. It shows that everything can be made, and what it looks like; it neither confirms nor "
    "contradicts the paper.",
    rounds=10,
    at_round=10,
    central=Central(rounds=2, local_epochs=5, validation=0.1),
    settings={"num_clients": 10, "local_epochs": 4, "batch_size": 32, "eta_l": 0.1},
    stand_ins=_both(
        "cifar10",
        vgg11=StandIn(dataset="digits", model="cnn", target=0.85),
        resnet8=StandIn(dataset="digits", model="resnet8", target=0.85, options=_NARROW),
    )
    | _both(
        "cifar100",
        vgg11=StandIn(dataset="digits", model="cnn", target=0.7, options=_TINY_FEW, examples=400),
        resnet8=StandIn(
            dataset="digits", model="resnet8", target=0.7, options={**_NARROW, **_TINY_FEW}, examples=400
        ),
    ),
    cka=256,
)
SMALL = Scale(
    name="small",
    text="The paper's data, cut down: the first 4,000 images of CIFAR-10 and CIFAR-100 at 16x16, not "
    "augmented. A perceptron of four hidden layers stands for VGG-11, ResNet-8 of half its width for "
    "ResNet-8. Twenty rounds of five local epochs, the same step size for all, nobody has momentum, "
    "lower targets.",
    rounds=20,
    at_round=20,
    central=Central(rounds=10, local_epochs=10, validation=0.1),
    settings={"num_clients": 10, "local_epochs": 5, "batch_size": 50, "eta_l": 0.1},
    stand_ins=_both(
        "cifar10",
        vgg11=StandIn(dataset="cifar10", model="mlp", target=0.33, options=_SMALL, examples=4000),
        resnet8=StandIn(
            dataset="cifar10", model="resnet8", target=0.25, options={**_SMALL, "width": 0.5}, examples=4000
        ),
    )
    | _both(
        "cifar100",
        vgg11=StandIn(dataset="cifar100", model="mlp", target=0.08, options=_SMALL, examples=4000),
        resnet8=StandIn(
            dataset="cifar100", model="resnet8", target=0.06, options={**_SMALL, "width": 0.5}, examples=4000
        ),
    ),
)
PAPER = Scale(
    name="paper",
    text="The paper's data, models and printed settings; `fedserver/presets.py` says what is not printed "
    "and chosen here.",
    rounds=published.ROUNDS_AT_MOST,
    at_round=published.ROUND,
    central=Central(rounds=published.CENTRAL_EPOCHS // 10, local_epochs=10),
)
SCALES = {scale.name: scale for scale in (TINY, SMALL, PAPER)}
