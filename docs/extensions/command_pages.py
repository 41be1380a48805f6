"""The pages of commands: whole names as headings, and flags as `--help` has them, with their defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from docutils import nodes
from sphinx.application import Sphinx

from common.commandline import OPTIONS, Option

PROGRAMS = ("fedserver", "fedclient", "fedwire", "fedlab")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("sphinx-click-process-options", under_headings)
    app.connect("sphinx-click-process-epilog", as_block)
    app.connect("doctree-read", in_full)
    return {"parallel_read_safe": True}


def under_headings(app: Sphinx, ctx: click.Context, lines: list[str]) -> None:
    """Flags without a heading of their own come first, then each section under its heading."""
    found: dict[str, list[str]] = {OPTIONS: []}
    for option in ctx.command.params:
        if isinstance(option, click.Option) and not option.hidden:
            heading = option.section if isinstance(option, Option) else OPTIONS
            found.setdefault(heading, []).extend(_entry(option, ctx))
    lines[:] = found.pop(OPTIONS)
    for heading, flags in found.items():
        lines += [f".. rubric:: {heading}", "", *flags]


def _entry(option: click.Option, ctx: click.Context) -> Iterator[str]:
    value = "" if option.is_flag else f" {option.make_metavar(ctx)}"
    yield f".. option:: {', '.join(name + value for name in (*option.opts[::-1], *option.secondary_opts))}"
    yield ""
    text, _, if_unset = (option.help or "").partition("  [default: ")
    yield "   " + _escaped(text)
    yield ""
    shown = type(ctx)(ctx.command, parent=ctx.parent, info_name=ctx.info_name, show_default=True)
    default = if_unset.removesuffix("]") or option.get_help_extra(shown).get("default", "")
    notes = [f"Default: {_escaped(default)}." if if_unset else f"Default: ``{default}``."] if default else []
    if variable := option.envvar or _variable(option, ctx):
        notes.append(f"Environment: ``{variable}``.")
    if notes:
        yield from ("   " + " ".join(notes), "")


def _variable(option: click.Option, ctx: click.Context) -> str:
    """The environment variable that a flag of a process may come from; other commands hardly need one."""
    prefix = ctx.find_root().command.context_settings.get("auto_envvar_prefix")
    return f"{prefix}_RUN_{option.name}".upper() if prefix and ctx.command.name == "run" else ""


def _escaped(text: str) -> str:
    """Nothing in a sentence of help is markup."""
    return re.sub(r"([\\*`|_])", r"\\\1", text)


def as_block(app: Sphinx, ctx: click.Context, lines: list[str]) -> None:
    """The end of a help is an example: commands, as they are typed."""
    examples = [line.strip().removeprefix("| ").strip() for line in lines]
    examples = [line for line in examples if line and line != "Example:"]
    if examples:
        lines[:] = ["Example:", "", ".. code-block:: sh", "", *(f"    {line}" for line in examples), ""]


def in_full(app: Sphinx, doctree: nodes.document) -> None:
    """A command is headed by all of its words, as it is typed; a heading's anchor already has them."""
    program = app.env.docname.removeprefix("reference/")
    for section in doctree.findall(nodes.section) if program in PROGRAMS else ():
        anchor, title = section["ids"][0], section.next_node(nodes.title)
        if title is not None and anchor.startswith(f"{program}-"):
            group = anchor.removesuffix(title.astext()).replace("-", " ").strip()
            title.replace_self(nodes.title("", f"{group} {title.astext()}"))
