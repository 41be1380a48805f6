"""Command line of the wire inspector."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from common import commandline
from common.errors import ConfigError, ExitCode
from common.installation.cli import version_option
from common.records.form import plain
from fedwire.inputs import Source, require_found

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _reads_capture(function: Any) -> Any:
    """What every command takes that reads one file; it gets a `Source`."""

    @functools.wraps(function)
    def command(capture: Path, port: int | None, run: str | None, **others: Any) -> Any:
        return function(source=Source(capture, port, run), **others)

    run_help = "Of a file with several runs, this one.  [default: the last]"
    return click.argument("capture", type=FILE)(_port_and_json(click.option("--run", help=run_help)(command)))


def _port_and_json(function: Any) -> Any:
    function = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)
    return click.option(
        "--port",
        type=click.IntRange(1, 65535),
        help="The server's port in a packet capture.  [default: find out]",
    )(function)


def _filters(function: Any) -> Any:
    for name, kind, text in (
        ("rpc", str, "Only this RPC, for example PushUpdate."),
        ("client", str, "Only this client."),
        ("round", int, "Only this round; 0 is what belongs to none."),
    ):
        function = click.option(f"--{name}", type=kind, help=text)(function)
    return function


def _json(document: Any) -> None:
    click.echo(json.dumps(plain(document), indent=2))


@click.group(
    cls=commandline.Group,
    context_settings=commandline.CONTEXT,
    epilog=commandline.example("fedwire stats run.fedwire", "fedwire ls run.fedwire --round 2"),
)
@version_option
def main() -> None:
    """Look at the wire traffic of a run: what every byte was for.

    Reads captures (fedserver run --capture FILE, fedclient run --capture FILE) and packet captures (tcpdump).
    """


@main.command("ls", epilog=commandline.example("fedwire ls run.fedwire --round 1 --client clinic-a"))
@_reads_capture
@_filters
def list_messages(source: Source, as_json: bool, **wanted: Any) -> None:
    """List messages: time, direction, client, round, RPC, bytes and purpose."""
    _list(source, as_json, wanted)


def _list(source: Source, as_json: bool, wanted: Mapping[str, object]) -> None:
    with source.open() as capture:
        rows = [message.row() for message in capture.messages]
    known = sorted({row.round for row in rows} - {0})
    rows = [row for row in rows if all(value in (None, getattr(row, name)) for name, value in wanted.items())]
    require_found(source.path, rows, wanted, known)
    if as_json:
        _json({"messages": rows, "problems": source.problems})
        return
    from fedwire.view import show_messages

    show_messages(rows)


@main.command(epilog=commandline.example("fedwire show run.fedwire 4"))
@_reads_capture
@click.argument("number", type=int)
def show(source: Source, number: int, as_json: bool) -> None:
    """Show one message: its fields and, for a header, the tensors that follow it."""
    from fedwire.message import inspect

    with source.open() as capture:
        details = inspect(capture, number)
    if as_json:
        _json(details.as_json())
        return
    from fedwire.view import show_message

    show_message(details)


@main.command(epilog=commandline.example("fedwire stats run.fedwire --run-dir runs/a"))
@_reads_capture
@click.option(
    "--run-dir",
    type=click.Path(exists=True, path_type=Path),
    help="Compare with the ledger of this run, to the byte; ends with 1 if they differ.",
)
def stats(source: Source, run_dir: Path | None, as_json: bool) -> None:
    """Add up bytes by round, client, purpose and tensor, and compare with FedAvg and SCAFFOLD."""
    from fedwire.stats import compare_with_run, statistics

    with source.open() as capture:
        source.require_run(capture, run_dir)
        result = replace(statistics(capture), problems=tuple(source.problems))
    if run_dir is not None:
        result = replace(result, differences=compare_with_run(result, run_dir))
    if as_json:
        _json(result)
    else:
        from fedwire.view import show_statistics

        show_statistics(result)
    if result.differences:
        raise SystemExit(ExitCode.FAILED)


@main.command(
    epilog=commandline.example(
        "fedwire timeline run.fedwire --out page.html", "fedwire timeline run.pcap --port 50051"
    )
)
@_reads_capture
@click.option("--client", help="Only this client.")
@click.option("--round", "r", type=int, help="Only this round.")
@click.option("--out", type=click.Path(path_type=Path), default="timeline.html", help="Page to write.")
def timeline(source: Source, client: str | None, r: int | None, out: Path, as_json: bool) -> None:
    """Write one HTML page: who sent what when, and what broke, was slow or was sent for nothing."""
    from fedwire.timeline.command import show

    show(source, client, r, None if as_json else out)


@main.command(epilog=commandline.example("fedwire diff before.fedwire after.fedwire"))
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
@click.option(
    "--run",
    "runs",
    multiple=True,
    help="Of files with several runs, this one; given twice, one for each file.  [default: the last]",
)
@_port_and_json
def diff(first: Path, second: Path, port: int | None, runs: tuple[str, ...], as_json: bool) -> None:
    """Say where two captures differ; ends with 1 if they do."""
    from fedwire.diff import differences

    if len(runs) > 2:
        raise ConfigError(f"--run can be given once or twice, got {', '.join(runs)}")
    source = Source(first, port, runs[0] if runs else None)
    other = replace(source, path=second, run=runs[-1] if runs else None)
    with source.open() as one, other.open() as another:
        rows = differences(one, another)
    if as_json:
        _json({"same": not rows, "differences": rows, "problems": source.problems})
    else:
        from fedwire.view import show_differences

        show_differences(rows)
    raise SystemExit(ExitCode.FAILED if rows else ExitCode.DONE)


@main.command(epilog=commandline.example("fedwire replay run.fedwire --run-dir runs/a"))
@_reads_capture
@click.option(
    "--run-dir",
    type=click.Path(exists=True, path_type=Path),
    help="Compare the last round with the final x and c of this run.",
)
def replay(source: Source, run_dir: Path | None, as_json: bool) -> None:
    """Aggregate each round again from the captured updates and compare with what the server sent next.

    Ends with 1 if a round differs, or if there was none to compare.
    """
    from fedwire.replay.replay import Replay

    with source.open() as capture:
        source.require_run(capture, run_dir)
        verdicts = Replay(capture, run_dir).run()
    if as_json:
        _json([asdict(verdict) for verdict in verdicts])
    else:
        from fedwire.view import show_verdicts

        show_verdicts(verdicts)
    known = [verdict.same for verdict in verdicts if verdict.same is not None]
    raise SystemExit(ExitCode.DONE if known and all(known) else ExitCode.FAILED)


@main.command(epilog=commandline.example("fedwire export run.fedwire --round 3 --out tensors"))
@_reads_capture
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write into.")
@click.option("--round", "r", type=int, help="Only this round.")
@click.option("--client", help="Only this client.")
def export(source: Source, out: Path, r: int | None, client: str | None, as_json: bool) -> None:
    """Write the tensors of broadcasts and updates as safetensors files."""
    from fedwire.export import export as write

    with source.open() as capture:
        written = write(capture, out, r, client, source.problems)
        known = sorted({message.round for message in capture.messages} - {0})
    require_found(source.path, written, {"round": r, "client": client}, known, "whole transfer")
    if as_json:
        _json({"files": written, "problems": source.problems})
        return
    for entry in written:
        click.echo(f"{entry.file}: {entry.tensors} tensors, {entry.bytes:,} bytes")


@main.command(
    epilog=commandline.example(
        "fedwire pcap run.pcap --port 50051", "fedwire pcap run.pcap --out run.fedwire"
    )
)
@_reads_capture
@_filters
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Also write the messages as a capture file, for the other commands.",
)
def pcap(source: Source, out: Path | None, as_json: bool, **wanted: Any) -> None:
    """List the gRPC messages in a packet capture (pcap or pcapng, plaintext HTTP/2), like ls.

    The other commands take packet captures too; --out saves them decoding it each time.
    """
    if out is not None:
        from fedwire.source import convert

        convert(source.path, source.port, out, source.problems)
        source = replace(source, path=out)
    _list(source, as_json, wanted)
