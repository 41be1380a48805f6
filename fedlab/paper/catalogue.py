"""Every table and figure of the paper by its name there: what it shows, and for which columns."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ConfigError
from fedlab.paper.columns import PRINTED

HETEROGENEOUS = tuple(name for name in PRINTED if name.endswith("-a0.1"))


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure."""

    name: str
    """As in the paper, in the spelling of a command line."""
    title: str
    shows: str
    columns: tuple[str, ...]
    """The paper's own for it; `--column` chooses others."""


ITEMS = {
    item.name: item
    for item in (
        Item(
            name="table2",
            title="Table 2: rounds to a target accuracy",
            shows="Rounds to 66 % (CIFAR-10) or 44 % (CIFAR-100) within 100 rounds, and the speed-up "
            "over FedAvg.",
            columns=PRINTED,
        ),
        Item(
            name="table3",
            title="Table 3: top-1 accuracy and copies sent",
            shows="Top-1 accuracy after 80 rounds, with the centralised model, and copies of the model "
            "that are sent.",
            columns=PRINTED,
        ),
        Item(
            name="tableC1",
            title="Table C.1: step sizes for CIFAR-10",
            shows="eta_l, schedule and momentum of every method; needs no runs.",
            columns=tuple(name for name in PRINTED if name.startswith("cifar10-")),
        ),
        Item(
            name="tableC2",
            title="Table C.2: step sizes for CIFAR-100",
            shows="eta_l, schedule and momentum of every method; needs no runs.",
            columns=tuple(name for name in PRINTED if name.startswith("cifar100-")),
        ),
        Item(
            name="fig1",
            title="Figure 1: speed-up over what is sent",
            shows="Speed-up over FedAvg of every method against the copies of the model that it sends.",
            columns=PRINTED,
        ),
        Item(
            name="fig2a",
            title="Figure 2, left: who has which classes",
            shows="Examples per client and class for different and for like clients; needs no runs.",
            columns=("cifar10-vgg11-a0.1",),
        ),
        Item(
            name="fig2b",
            title="Figure 2, middle: similarity of client models",
            shows="CKA between the clients' models under FedAvg, client by client, in early and late layers.",
            columns=("cifar10-vgg11-a0.1",),
        ),
        Item(
            name="fig2c",
            title="Figure 2, right: drift diversity by layer",
            shows="Drift diversity of every layer under FedAvg, for different and for like clients.",
            columns=("cifar10-vgg11-a0.1",),
        ),
        Item(
            name="fig3",
            title="Figure 3: prediction sets against centralised accuracy",
            shows="Coverage over mean size of conformal prediction sets, with a line at the centralised "
            "top-1 accuracy.",
            columns=HETEROGENEOUS,
        ),
        Item(
            name="fig4",
            title="Figure 4: drift diversity and learning curve",
            shows="Drift diversity by layer and round beside the learning curves of FedAvg, SCAFFOLD and "
            "FedPVR.",
            columns=("cifar100-resnet8-a1.0",),
        ),
        Item(
            name="fig5",
            title="Figure 5: where variance reduction starts",
            shows="Learning curves with variance reduction from different layers on, from all of them to "
            "none.",
            columns=("cifar100-vgg11-a1.0",),
        ),
        Item(
            name="figC1",
            title="Figure C.1: levels of heterogeneity",
            shows="Examples per client and class, both data sets at both concentrations; needs no runs.",
            columns=tuple(name for name in PRINTED if "vgg11" in name),
        ),
        Item(
            name="figC2",
            title="Figure C.2: where variance reduction starts, ResNet-8",
            shows="As figure 5, for ResNet-8.",
            columns=("cifar100-resnet8-a1.0",),
        ),
        Item(
            name="figC3",
            title="Figure C.3: drift diversity and learning curve, VGG-11",
            shows="As figure 4, for VGG-11 and clients that differ more.",
            columns=("cifar100-vgg11-a0.1",),
        ),
        Item(
            name="figC4",
            title="Figure C.4: prediction sets against centralised ones",
            shows="As figure 3, with the centralised model's own prediction sets in place of its accuracy.",
            columns=HETEROGENEOUS,
        ),
    )
}
ALL = "all"

_RENAMED = {
    "table1": "the paper's table 1 is its notation; rounds to a target, once called table1 here, are table2",
    "figdrift": "fig-drift is now fig2b (CKA), fig2c (drift by layer) and fig4 (drift of three methods)",
    "figsvrstart": "fig-svr-start is now fig5, and figC2 for ResNet-8",
    "figconformal": "fig-conformal is now fig3, and figC4 with centralised prediction sets",
    "figpartition": "fig-partition is now fig2a, and figC1 for both data sets",
    "fig2": "figure 2 has three parts: fig2a, fig2b and fig2c",
}


def items(name: str) -> list[Item]:
    """The item of a name, or all; capitals, dots and dashes do not matter."""
    wanted = plain(name)
    if wanted == ALL:
        return list(ITEMS.values())
    known = {plain(each): item for each, item in ITEMS.items()}
    if wanted in known:
        return [known[wanted]]
    if wanted in _RENAMED:
        raise ConfigError(f"{name}: {_RENAMED[wanted]}; see fedlab reproduce --list")
    raise ConfigError(
        f"neither the paper nor we have a {name!r} that runs; choose {', '.join(ITEMS)} or all, or one of "
        "our experiments; see fedlab reproduce --list"
    )


def plain(name: str) -> str:
    """A name without what does not matter in it."""
    return (
        name.lower()
        .replace(".", "")
        .replace("-", "")
        .replace("_", "")
        .replace(" ", "")
        .replace("figure", "fig")
    )
