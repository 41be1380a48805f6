"""What the command lines share: help under headings, one line for an error, settings from a file, logs."""

from __future__ import annotations

import functools
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click
from click.core import ParameterSource

from common.errors import ConfigError, ExitCode, FedError
from common.events import Emit, JsonLog, Level, TextLog
from common.installation import extras

OPTIONS, SECURITY, LOG = "Options", "Security", "Log"
LOGS: dict[str, Callable[[Level, TextIO | None], Emit]] = {"text": TextLog, "json": JsonLog}
HELP_COLUMN = 28
"""Flags that are longer have their explanation on the next line."""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


class Option(click.Option):
    """A flag that stands under a heading of its command's help."""

    def __init__(self, *names: Any, section: str, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.section = section


class Command(click.Command):
    """A command whose help has its flags under headings, and which says where a wrong value came from."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        """With `-h`, also where no group is around it."""
        super().__init__(*arguments, **{"context_settings": CONTEXT} | attributes)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the flags; those without a heading are under "Options"."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                heading = parameter.section if isinstance(parameter, Option) else OPTIONS
                sections.setdefault(heading, []).append(record)
        longest = max(len(names) for records in sections.values() for names, _ in records)
        width = min(HELP_COLUMN, longest)
        for heading, records in sections.items():
            with formatter.section(heading):
                # All explanations start in one column, whatever heading they are under.
                formatter.write_dl([(names.ljust(width), text) for names, text in records], HELP_COLUMN)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if not (origin := _origin(ctx, error.param)):
                raise
            raise click.BadParameter(error.message.rstrip(".") + origin, ctx, error.param) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            named = {word.rstrip(":,;") for word in str(error).split()}
            origins = [_origin(ctx, each) for each in self.params if named.intersection(each.opts)]
            raise ConfigError(f"{error}{max(origins, default='')}") from error

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first sentence in a list of commands, never cut."""
        return super().get_short_help_str(sys.maxsize)


def _origin(ctx: click.Context, parameter: click.Parameter | None) -> str:
    """Where the value of a flag came from, if it was not given as one."""
    name = (parameter and parameter.name) or ""
    if (source := ctx.get_parameter_source(name)) is ParameterSource.ENVIRONMENT:
        return f" (from {ctx.auto_envvar_prefix}_{name.upper()} in the environment)"
    return " (from the file of --config)" if source is ParameterSource.DEFAULT_MAP else ""


class Group(click.Group):
    """A command group that ends every known error as one line and an exit code."""

    command_class = Command

    def __init__(self, *arguments: Any, extra: str = "", **attributes: Any) -> None:
        """`extra` is the one of this package that all commands of the group can do with."""
        super().__init__(*arguments, **attributes)
        self.extra = extra

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        with errors_in_one_line(extra=self.extra):
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                raise SystemExit(ExitCode.INTERRUPTED) from None


@contextmanager
def errors_in_one_line(whose: str = "", extra: str = "") -> Iterator[None]:
    """Ends the block with a line and an exit code for every known error; `whose` says of which client."""
    prefix = f"Error: {whose}: " if whose else "Error: "
    try:
        yield
    except FedError as error:
        click.echo(f"{prefix}{error}", err=True)
        raise SystemExit(error.exit_code) from error
    except ModuleNotFoundError as error:
        if (known := extras.missing(error, extra)) is None:
            raise
        click.echo(f"{prefix}{known}", err=True)
        raise SystemExit(known.exit_code) from error
    except BrokenPipeError as error:
        if whose:
            raise SystemExit(ExitCode.FAILED) from error
        raise  # Whoever read the output has enough; click ends without a word.
    except OSError as error:
        click.echo(f"{prefix}{error.filename or 'input or output'}: {error.strerror or error}", err=True)
        raise SystemExit(ExitCode.FAILED) from error


def settings_file(
    ctx: click.Context, parameter: click.Parameter, path: Path | None, only: Collection[str] = ()
) -> Path | None:
    """Callback of `--config FILE.toml`: its values become defaults, below flags and environment.

    `only` are the settings that it may have, if not all.
    """
    if path is None:
        return None
    flag = parameter.opts[0]
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{flag} {path} cannot be read: {reason}") from error
    known = set(only) or {each.name for each in ctx.command.params} - {"config", "task"}
    settings = {key.replace("-", "_"): value for key, value in values.items()}
    if unknown := sorted(settings.keys() - known):
        names = ", ".join(sorted(known))
        raise ConfigError(f"{flag} {path}: unknown setting {unknown[0]!r}; known are {names}")
    ctx.default_map = {**(ctx.default_map or {}), **settings}
    return path


def example(*lines: str) -> str:
    """The end of a command's help: how it is used."""
    return "\b\nExample:\n" + "\n".join(f"    {line}" for line in lines)


def option(section: str, *names: str, **attributes: Any) -> Callable[[Any], Any]:
    """A flag under a heading of the help; the rest is as for `click.option`."""
    return click.option(*names, cls=Option, section=section, **attributes)


def capture_option(section: str) -> Callable[[Any], Any]:
    """The flag for a file that gets every message of a process."""
    return option(
        section,
        "--capture",
        type=click.Path(path_type=Path),
        help="Append every message to this file, for fedwire.",
    )


def log_options(function: Any) -> Any:
    """The flags for logs, for a command that runs for a while; it gets the listener they choose as `emit`.

    Where a command prints a JSON document, standard output is for that alone.
    """

    @functools.wraps(function)
    def command(*args: Any, log_format: str, quiet: bool, verbose: bool, **kwargs: Any) -> Any:
        file = sys.stderr if kwargs.get("as_json") else None
        return function(*args, emit=listener(log_format, quiet, verbose, file), **kwargs)

    command = option(LOG, "--verbose", "-v", is_flag=True, help="Tell details too.")(command)
    command = option(LOG, "--quiet", "-q", is_flag=True, help="Tell only what calls for attention.")(command)
    return option(
        LOG,
        "--log-format",
        type=click.Choice(tuple(LOGS)),
        default="text",
        help="Lines for people, or a JSON object per line for programs.",
    )(command)


def listener(log_format: str, quiet: bool, verbose: bool, file: TextIO | None) -> Emit:
    """A listener that writes events into a file, by default standard output, as `log_options` say."""
    if quiet and verbose:
        raise ConfigError("--quiet and --verbose exclude each other; give one of them")
    least = Level.WARNING if quiet else Level.DETAIL if verbose else Level.NOTICE
    return LOGS[log_format](least, file)
