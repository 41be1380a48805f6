"""Command line of the wire inspector."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common import commandline
from common.records.form import plain

if TYPE_CHECKING:
    from fedwire.source import Capture

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _options(function: Any) -> Any:
    """What every command takes."""
    function = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)
    function = click.option("--run", help="Of a file with several runs, this one.  [default: the last]")(
        function
    )
    return click.option(
        "--port",
        type=click.IntRange(1, 65535),
        help="The server's port in a packet capture.  [default: find out]",
    )(function)


@contextmanager
def _opened(path: Path, port: int | None, run: str | None) -> Iterator[tuple[Capture, list[str]]]:
    """A capture, and what is wrong with it; that goes to standard error too."""
    from fedwire.source import opened

    problems: list[str] = []
    with opened(path, port, run, _told(problems)) as capture:
        yield capture, problems


def _told(problems: list[str]) -> Callable[[str], None]:
    def problem(line: str) -> None:
        problems.append(line)
        click.echo(line, err=True)

    return problem


def _json(document: Any) -> None:
    click.echo(json.dumps(plain(document), indent=2))


@click.group(
    cls=commandline.Group,
    context_settings=commandline.CONTEXT,
    epilog=commandline.example("fedwire stats run.fedwire", "fedwire ls run.fedwire --round 2"),
)
def main() -> None:
    """Look at the wire traffic of a run: what every byte was for.

    Reads captures (fedserver run --capture FILE, fedclient run --capture FILE) and packet captures (tcpdump).
    """


def _filters(function: Any) -> Any:
    for flag, kind, text in (
        ("--rpc", str, "Only this call, for example PushUpdate."),
        ("--client", str, "Only this client."),
        ("--round", int, "Only this round; 0 is what belongs to none."),
    ):
        function = click.option(flag, type=kind, help=text)(function)
    return function


@main.command("ls", epilog=commandline.example("fedwire ls run.fedwire --round 1 --client clinic-a"))
@click.argument("capture", type=FILE)
@_filters
@_options
def list_messages(
    capture: Path,
    round: int | None,
    client: str | None,
    rpc: str | None,
    port: int | None,
    run: str | None,
    as_json: bool,
) -> None:
    """List messages: time, direction, client, round, call, bytes and purpose."""
    with _opened(capture, port, run) as (found, problems):
        _list(found, problems, round, client, rpc, as_json)


def _list(
    found: Capture, problems: list[str], r: int | None, client: str | None, rpc: str | None, as_json: bool
) -> None:
    from fedwire.listing import row

    rows = [
        row(m)
        for m in found.messages
        if r in (None, m.round) and client in (None, m.client) and rpc in (None, m.rpc)
    ]
    if as_json:
        _json({"messages": rows, "problems": problems})
        return
    from fedwire.view import show_messages

    show_messages(rows)


@main.command(epilog=commandline.example("fedwire show run.fedwire 4"))
@click.argument("capture", type=FILE)
@click.argument("number", type=int)
@_options
def show(capture: Path, number: int, port: int | None, run: str | None, as_json: bool) -> None:
    """Show one message: its fields and, for a header, the tensors that follow it."""
    with _opened(capture, port, run) as (found, _):
        from fedwire.message import inspect

        described = inspect(found, number)
    if as_json:
        _json(described)
        return
    from fedwire.view import show_message

    show_message(described)


@main.command(epilog=commandline.example("fedwire stats run.fedwire --run-dir runs/a"))
@click.argument("capture", type=FILE)
@click.option(
    "--run-dir",
    type=click.Path(exists=True, path_type=Path),
    help="Compare with the ledger of this run, to the byte; ends with 1 if they differ.",
)
@_options
def stats(capture: Path, run_dir: Path | None, port: int | None, run: str | None, as_json: bool) -> None:
    """Add up bytes by round, client, purpose and tensor, and compare with FedAvg and SCAFFOLD."""
    from fedwire.stats import compare_with_run, statistics

    with _opened(capture, port, run) as (found, problems):
        result = replace(statistics(found), problems=tuple(problems))
    if run_dir is not None:
        result = replace(result, differences=compare_with_run(result, run_dir))
    if as_json:
        _json(result)
    else:
        from fedwire.view import show_statistics

        show_statistics(result)
    if result.differences:
        raise SystemExit(1)


@main.command(epilog=commandline.example("fedwire diff before.fedwire after.fedwire"))
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
@_options
def diff(first: Path, second: Path, port: int | None, run: str | None, as_json: bool) -> None:
    """Say where two captures differ; ends with 1 if they do."""
    from fedwire.diff import differences

    with _opened(first, port, run) as (one, _), _opened(second, port, None) as (other, _):
        rows = differences(one, other)
    if as_json:
        _json({"same": not rows, "differences": rows})
    else:
        from fedwire.view import show_differences

        show_differences(rows)
    raise SystemExit(1 if rows else 0)


@main.command(epilog=commandline.example("fedwire replay run.fedwire --run-dir runs/a"))
@click.argument("capture", type=FILE)
@click.option(
    "--run-dir",
    type=click.Path(exists=True, path_type=Path),
    help="Compare the last round with the final x and c of this run.",
)
@_options
def replay(capture: Path, run_dir: Path | None, port: int | None, run: str | None, as_json: bool) -> None:
    """Aggregate each round again from the captured updates and compare with what the server sent next.

    Ends with 1 if a round differs, or if there was none to compare.
    """
    from dataclasses import asdict

    from fedwire.replay import Replay

    with _opened(capture, port, run) as (found, _):
        verdicts = [asdict(verdict) for verdict in Replay(found, run_dir).run()]
    if as_json:
        _json(verdicts)
    else:
        from fedwire.view import show_verdicts

        show_verdicts(verdicts)
    known = [verdict["same"] for verdict in verdicts if verdict["same"] is not None]
    raise SystemExit(0 if known and all(known) else 1)


@main.command(epilog=commandline.example("fedwire export run.fedwire --round 3 --out tensors"))
@click.argument("capture", type=FILE)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write into.")
@click.option("--round", "r", type=int, help="Only this round.")
@click.option("--client", help="Only this client.")
@_options
def export(
    capture: Path,
    out: Path,
    r: int | None,
    client: str | None,
    port: int | None,
    run: str | None,
    as_json: bool,
) -> None:
    """Write the tensors of broadcasts and updates as safetensors files."""
    from fedwire.export import export as write

    with _opened(capture, port, run) as (found, problems):
        written = write(found, out, r, client, _told(problems))
    if as_json:
        _json({"files": written, "problems": problems})
        return
    for entry in written:
        click.echo(f"{entry['file']}: {entry['tensors']} tensors, {entry['bytes']:,} bytes")
    if not written:
        click.echo("no whole transfer in the capture matches")


@main.command(
    epilog=commandline.example(
        "fedwire pcap run.pcap --port 50051", "fedwire pcap run.pcap --out run.fedwire"
    )
)
@click.argument("capture", type=FILE)
@_filters
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Also write the messages as a capture file, for the other commands.",
)
@_options
def pcap(
    capture: Path,
    round: int | None,
    client: str | None,
    rpc: str | None,
    out: Path | None,
    port: int | None,
    run: str | None,
    as_json: bool,
) -> None:
    """List the gRPC messages in a packet capture (pcap or pcapng, plaintext HTTP/2), like ls.

    The other commands take packet captures too; --out saves them decoding it each time.
    """
    if out is not None:
        from fedwire.source import convert

        convert(capture, port, out, _told([]))
    with _opened(out or capture, port, run) as (found, problems):
        _list(found, problems, round, client, rpc, as_json)
