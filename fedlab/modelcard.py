"""What a model costs to train in a federation: its tensors, S_svr, and the traffic of each algorithm."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from common.algorithms import svr_names
from common.models.build import ModelSpec, build_model, classifier_names, tensor_specs
from common.tensors.layout import Purpose

IMAGE_SHAPES = {"cnn": (1, 8, 8)}
PAPER_SHAPE = (3, 32, 32)


def card(name: str, num_classes: int, width: float, patterns: tuple[str, ...]) -> dict[str, Any]:
    """The tensors of a model, d, v and 2(1 + v/d), the floats per client and round in units of d."""
    spec = ModelSpec(
        name=name, num_classes=num_classes, image_shape=IMAGE_SHAPES.get(name, PAPER_SHAPE), width=width
    )
    model = build_model(spec, seed=0)
    specs = tensor_specs(model)
    parameters = [s for s in specs if s.purpose is Purpose.MODEL]
    svr = svr_names("fedpvr", patterns, [s.name for s in parameters], classifier_names(model))
    d = sum(s.num_elements for s in parameters)
    v = sum(s.num_elements for s in parameters if s.name in svr)
    return {
        "name": name,
        "num_classes": num_classes,
        "d": d,
        "v": v,
        "multiplier": 2 * (1 + v / d),
        "tensors": [
            {
                "name": s.name,
                "dtype": s.dtype,
                "shape": list(s.shape),
                "purpose": s.purpose.name.lower(),
                "svr": s.purpose is Purpose.MODEL and s.name in svr,
            }
            for s in specs
        ],
    }


def show(model: dict[str, Any], console: Console) -> None:
    """Prints a model card."""
    table = Table("tensor", "shape", "dtype", "purpose", "S_svr")
    for tensor in model["tensors"]:
        shape = "x".join(map(str, tensor["shape"])) or "scalar"
        table.add_row(
            tensor["name"], shape, tensor["dtype"], tensor["purpose"], "yes" if tensor["svr"] else ""
        )
    console.print(table)
    console.print(
        f"d = {model['d']:,} parameters, v = {model['v']:,} in S_svr; floats per client and round: "
        f"FedAvg 2 d, FedPVR {model['multiplier']:.4f} d, SCAFFOLD 4 d; with --variates derived 2 d for all",
        highlight=False,
    )
