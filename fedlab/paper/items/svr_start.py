"""Figures 5 and C.2: variance reduction from different layers on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.algorithms import svr_names
from common.models.build import build_model, classifier_names, tensor_specs
from common.models.spec import ModelSpec
from common.tensors.layout import Purpose
from fedlab.experiments.bench import Output
from fedlab.paper.columns import Column
from fedlab.paper.data import DATA
from fedlab.paper.items.parts import accuracy_at, copies, entry, learning_curves
from fedlab.paper.study import Study, Wanted
from fedlab.reports.tables import Table

STARTS = 6
"""Layers at which variance reduction begins, at the most; where FedPVR's own begins is one of them."""


@dataclass(frozen=True)
class Start:
    """S_svr is everything from a layer on."""

    tensor: int
    """Index of the layer's first tensor, as the paper counts."""
    names: tuple[str, ...]
    """All tensors of S_svr; a layer's weights and biases are in it together."""
    label: str
    own: bool = False
    """Whether it is FedPVR's own set."""


def starts(study: Study, column: Column) -> list[Start]:
    """From all layers to none."""
    parameters, own = _parameters(study, column)
    momentum = study.described(column, "fedpvr")["momentum"]
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in parameters))
    first = {
        layer: next(k for k, n in enumerate(parameters) if n.rpartition(".")[0] == layer) for layer in layers
    }
    chosen = {round(k * (len(layers) - 1) / (STARTS - 1)) for k in range(STARTS)}
    indices = sorted({first[layers[k]] for k in chosen} | {parameters.index(own[0])})
    last = len(parameters) - 1
    found = []
    for index in indices:
        names = tuple(parameters[index:])
        said = f"SVR {index}->{last}"
        if names == tuple(own):
            said += " (FedPVR)"
        elif index == 0:
            said += " (SCAFFOLD's S_svr, FedPVR's eta_l; momentum acts nowhere)"
        found.append(Start(index, names, said, own=names == tuple(own)))
    none = f"none (FedAvg with momentum {momentum} and FedPVR's eta_l)"
    return [*found, Start(len(parameters), (), none)]


def _parameters(study: Study, column: Column) -> tuple[list[str], list[str]]:
    """Names of all parameters, and of those in FedPVR's own S_svr."""
    stand_in = study.scale.stand_in(column)
    data = DATA[stand_in.dataset]
    width = float(str(stand_in.options.get("width", 1.0)))
    shape = data.shape_at(stand_in.options.get("image_size"))
    spec = ModelSpec(name=stand_in.model, num_classes=data.classes, image_shape=shape, width=width)
    model = build_model(spec, seed=0)
    parameters = [tensor.name for tensor in tensor_specs(model) if tensor.purpose is Purpose.MODEL]
    return parameters, list(svr_names("fedpvr", (), parameters, classifier_names(model)))


def _wanted(study: Study, column: Column, start: Start) -> list[Wanted]:
    """FedPVR's own set is not named: these are the runs of the tables."""
    changes = {} if start.own else {"svr": list(start.names) or ["none"]}
    return study.every_seed(column, "fedpvr", **changes)


def runs(study: Study, columns: Sequence[Column]) -> list[Wanted]:
    """FedPVR with every start."""
    return [
        each
        for column in columns
        for start in starts(study, column)
        for each in _wanted(study, column, start)
    ]


def svr_start(study: Study, columns: Sequence[Column], out: Output) -> None:
    """Learning curves by start, and where they end."""
    at = study.scale.at_round
    for column in columns:
        outcomes = {start: study.outcomes(_wanted(study, column, start)) for start in starts(study, column)}
        rows = []
        for start, found in outcomes.items():
            rows.append(
                [
                    start.label,
                    start.names[0] if start.names else "-",
                    entry(found, lambda run: 100 * (accuracy_at(run, at) or run.accuracy())),
                    found[0].shown(lambda run: f"{copies(run):.3f}x"),
                ]
            )
        headings = ["S_svr", "from", f"top-1 in per cent after round {at}", "copies sent"]
        out.table(
            f"svr-{column.name}", f"{study.heading(column)}, FedPVR with other sets", Table(headings, rows)
        )
        labelled = {start.label: found for start, found in outcomes.items()}
        out.pictures(f"svr-{column.name}", [learning_curves(study.heading(column), labelled)])
    out.page.text(
        "All have FedPVR's settings; only S_svr differs. Momentum acts outside S_svr, so a start further "
        "back also takes momentum away: the ends are not FedAvg and SCAFFOLD as in the tables, but these "
        "with FedPVR's settings."
    )
