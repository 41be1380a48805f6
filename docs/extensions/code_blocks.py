"""Indented blocks of commands look like commands, though Markdown cannot say what is in them."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

_COMMAND = re.compile(
    r"(\w+=\S+ )*(fed(server|client|wire|lab)|make|docker(-compose)?|kubectl|pip|git|alias|tls|for|"
    r"tcpdump|tshark|grpcurl|printf|python|mkdir|\.venv/bin/\w+) "
)


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("doctree-read", colour_commands)
    return {"parallel_read_safe": True}


def colour_commands(app: Sphinx, doctree: nodes.document) -> None:
    """Highlights blocks without a language as shell or TOML where they begin like it."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("language", "text") in ("text", "none", "default"):
            if _COMMAND.match(block.astext()):
                block["language"] = "sh"
            elif re.match(r'[a-z_]+ = ["\[\d]', block.astext()):
                block["language"] = "toml"
