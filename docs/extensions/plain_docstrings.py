"""Docstrings are plain text, not reStructuredText: what would be markup there is shown as it stands."""

from __future__ import annotations

import re

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", as_text)
    return {"parallel_read_safe": True}


def as_text(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Words in backticks are code; a paragraph with indented or aligned lines is a block."""
    paragraphs = [each.splitlines() for each in re.split(r"\n\s*\n", "\n".join(lines)) if each.strip()]
    lines.clear()
    for paragraph in paragraphs:
        if any(line.startswith("  ") or "   " in line for line in paragraph):
            lines += ["::", "", *(f"    {line}" for line in paragraph), ""]
        else:
            text = [re.sub(r"([*|_\\])(?![^`]*`)", r"\\\1", line) for line in paragraph]
            lines += [*(re.sub(r"`([^`]+)`", r"``\1``", line) for line in text), ""]
