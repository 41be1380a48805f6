"""Prints docs/settings.md: the flags of `fedserver run` by heading, with their defaults and sentences."""

from __future__ import annotations

from common.commandline import Option
from fedserver.cli import main

INTRODUCTION = """\
# Settings of a run

Written by `python -m fedserver.settings_table` (`make docs`) from the declarations that also make the flags.

A setting is given, strongest first, by a flag (`--local-steps 5`), by an environment variable of the server
(`FEDSERVER_RUN_LOCAL_STEPS=5`), by a key in the TOML file that `--config` names (`local-steps = 5`), or by a
`--preset`. `fedlab simulate` and `fedlab centralised` take the same flags, except for those of a process that
listens. The run directory has what came of all this in `config.json`, with underscores (`"local_steps": 5`).
"""


def table() -> str:
    """The whole document."""
    command = main.commands["run"]
    context = command.context_class(command, show_default=True)
    sections: dict[str, str] = {}
    for option in command.params:
        if isinstance(option, Option):
            default = option.get_help_extra(context).get("default", "")
            rows = sections.get(option.section, "| flag | default | meaning |\n|---|---|---|\n")
            sections[option.section] = rows + _row(option, default)
    return INTRODUCTION + "".join(f"\n## {heading}\n\n{rows}" for heading, rows in sections.items())


def _row(option: Option, default: str) -> str:
    meaning, _, if_unset = (option.help or "").partition("  [default: ")
    names = "/".join([*option.opts[::-1], *option.secondary_opts])
    choices = " ".join(f"`{choice}`" for choice in getattr(option.type, "choices", ()))
    return (
        f"| `{names}` | {f'`{default}`' if default else if_unset.removesuffix(']')} "
        f"| {meaning}{' One of ' + choices if choices else ''} |\n"
    )


if __name__ == "__main__":
    print(table(), end="")
