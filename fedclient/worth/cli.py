"""Commands with which a site finds out what it has of a federation."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common import commandline
from common.access import cli as access_cli
from common.access.credentials import require_encrypted
from common.devices.cli import training_options
from common.errors import ConfigError
from common.events import Emit
from common.processes import signals
from fedclient.store.cli import place, place_options

if TYPE_CHECKING:
    from common.tensors.layout import Flat
    from fedclient.own_data import OwnData
    from fedclient.worth.bench import Bench

MODEL = "baseline.safetensors"


def site_options(function: Any) -> Any:
    """Flags that say whose state it is and where the site's data are."""
    path = click.Path(path_type=Path)
    for names, attributes in (
        (("--allow-plugin",), {"multiple": True, "help": "Code MODULE:FACTORY that may be loaded."}),
        (("--data-dir",), {"default": "data", "help": "Where data sets that are not built in are."}),
        (("--partition",), {"type": path, "help": "With --shard: the file that has the shards."}),
        (("--shard",), {"metavar": "I/N", "help": "With --dataset: the part of it that is this site's."}),
        (("--dataset",), {"metavar": "NAME", "help": "The data set that this site trained on."}),
        (("--data",), {"type": path, "help": "The folder of pictures that this site trained on."}),
        (("--run", "run_id"), {"metavar": "ID", "help": "The run.  [default: the newest in --state-dir]"}),
    ):
        function = click.option(*names, **attributes)(function)
    return place_options(training_options(commandline.OPTIONS)(function))


def _bench(emit: Emit, state_dir: Path, run_id: str | None, **given: Any) -> tuple[Bench, Path]:
    import torch

    torch.set_num_threads(1)
    from common.devices.choice import placed
    from fedclient.own_data import OwnDataset, OwnPictures
    from fedclient.site import Site
    from fedclient.worth.bench import Bench
    from fedclient.worth.known import known_run

    if (given["data"] is None) == (given["dataset"] is None):
        raise ConfigError("expected the site's data as --data FOLDER or as --dataset NAME; give one of them")
    place = placed(given["device"], given["autocast"])
    folder, run = known_run(state_dir, run_id)
    own: OwnData
    if given["data"] is not None:
        own = OwnPictures(given["data"], emit)
    else:
        own = OwnDataset(given["dataset"], given["data_dir"], given["shard"], emit, given["partition"])
    return Bench(run, own, Site(plugins=frozenset(given["allow_plugin"])), place), folder


@click.command(epilog=commandline.example("fedclient baseline --name clinic-a --data pictures"))
@site_options
@commandline.log_options
def baseline(emit: Emit, state_dir: Path | None, name: str | None, **given: Any) -> None:
    """Train on the site's own data alone, with the model and the steps of a run it took part in.

    Starts from the run's first x and takes as many rounds and steps, of the same size and on batches of the
    same size. Writes baseline.safetensors and baseline.json beside the state of the run.
    """
    state = place(state_dir, name)
    with signals.stopped_by_signals():
        bench, folder = _bench(emit, state, **given)
        _trained_alone(bench, folder)
    click.echo(f"baseline: {folder / MODEL}; next: fedclient report --state-dir {state} --model FILE")


def _trained_alone(bench: Bench, folder: Path) -> Flat:
    from common import json_files
    from common.atomic import PRIVATE
    from common.records.client import BASELINE
    from common.tensors import safetensors_files
    from common.tensors.layout import Purpose

    x, record = bench.alone()
    safetensors_files.write(folder / MODEL, bench.layout, x, Purpose.MODEL, Purpose.BUFFER)
    json_files.write(folder / BASELINE, record, PRIVATE)
    return x


@click.command(
    epilog=commandline.example("fedclient report --name clinic-a --data pictures --model model.safetensors")
)
@site_options
@click.option(
    "--model",
    "model_file",
    type=click.Path(path_type=Path),
    help="model.safetensors of the run.",
)
@click.option("--server", metavar="HOST:PORT", help="Instead of --model: the server of a run that goes on.")
@click.option(
    "--test", help="Folder of pictures, or data set, to judge on.  [default: what the run held out]"
)
@click.option("--out", type=click.Path(path_type=Path), default="site.html", help="Page to write.")
@access_cli.access_options
@commandline.log_options
def report(
    emit: Emit, state_dir: Path | None, model_file: Path | None, test: str | None, out: Path, **given: Any
) -> None:
    """Write one HTML page for the site: is the federation's model worth it here?

    Judges the site's own model (see fedclient baseline), the federation's, and the federation's after one
    more local round, on the site's own test data; and says what the site sent and who else took part.
    """
    if (model_file is None) == (given["server"] is None):
        raise ConfigError("expected the model as --model FILE or from --server HOST:PORT; give one of them")
    state = place(state_dir, given["name"])
    given["name"] = given["name"] or socket.gethostname()
    with signals.stopped_by_signals():
        bench, folder = _bench(emit, state, **given)
        from common.tensors import safetensors_files
        from fedclient.worth.judge import findings

        if model_file is not None:
            x = safetensors_files.read(model_file, bench.layout)
        else:
            x = _from_server(bench, state, **given)
        alone = folder / MODEL
        own = safetensors_files.read(alone, bench.layout) if alone.exists() else _trained_alone(bench, folder)
        found = findings(
            bench, given["name"], state, model_file, {"alone": own, "federated": x}, _tests(test, given, emit)
        )
        from fedclient.worth.report import write_page

        write_page(found, out)
    for kind, counts in found.judged.items():
        click.echo(f"{kind}: accuracy {counts.accuracy.text()}")
    click.echo(f"report: {out}")


def _from_server(bench: Bench, state_dir: Path, server: str, name: str, **given: Any) -> Flat:
    """x of a run that goes on; the client itself must not run meanwhile: names are taken once."""
    from fedclient.store.state import StateDir
    from fedclient.worth.fetch import fetched

    access_cli.require_address("--server", server)
    credentials = {key: given[key] for key in ("certs", "token_file", "insecure")}
    require_encrypted(server, given["certs"], given["insecure"])
    with StateDir(state_dir):
        access = access_cli.access(server, name, **credentials)
        return fetched(server, name, access, bench.own, bench.run.run_id, bench.layout)


def _tests(test: str | None, given: dict[str, Any], emit: Emit) -> OwnData | None:
    if test is None:
        return None
    from fedclient.own_data import OwnDataset, OwnPictures

    if Path(test).is_dir():
        return OwnPictures(Path(test), emit)
    return OwnDataset(test, given["data_dir"], None, emit, split="test")
