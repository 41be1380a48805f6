"""The command about models."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from common import commandline
from common.models import names
from common.models.spec import ModelSpec
from fedserver.cli import checked_option
from fedserver.task import Task


@click.command(
    epilog=commandline.example(
        "fedlab model resnet8 --num-classes 100 --json",
        "fedlab model cnn --input-shape 1x8x8 --export first.safetensors",
    )
)
@click.argument("name")
@click.option("--num-classes", type=click.IntRange(2), default=10, help="C.")
@checked_option("width")
@checked_option("svr")
@checked_option("personal")
@checked_option("freeze")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    help="Write the model's first weights to this safetensors file instead, for fedserver run --init.",
)
@checked_option("seed")
@click.option("--input-shape", "shape", metavar="CxHxW", help="Of one example.  [default: the usual one]")
@click.option(
    "--dtype", type=click.Choice(("float32", "float64")), default="float32", help="Of what is exported."
)
def model(
    name: str,
    num_classes: int,
    width: float,
    as_json: bool,
    export: Path | None,
    seed: int,
    shape: str | None,
    dtype: str,
    **patterns: tuple[str, ...],
) -> None:
    """Show a model's tensors, the class of each, and what that means for traffic.

    NAME is a built-in model or module:factory, imported from the current directory. With --export it may be
    a model of torchvision too: with its published weights if torch has them in its cache, else seeded.
    """
    task = Task(input_shape=shape or "x".join(map(str, names.usual_shape(name))))
    task.check_shape()
    if export is not None:
        from fedlab.models.export import export_model

        spec = ModelSpec(
            name=name,
            num_classes=num_classes,
            image_shape=task.example_shape,
            dtype=dtype,
            width=width,
        )
        click.echo(f"{export}: {name} from {export_model(spec, seed, export)}")
        return
    names.require_known(name)
    from rich.console import Console

    from fedlab.console import show_model
    from fedlab.models.card import model_card

    card = model_card(name, num_classes, width, task.example_shape, **patterns)
    if as_json:
        click.echo(json.dumps(asdict(card), indent=2))
    else:
        show_model(card, Console())
