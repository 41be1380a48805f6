"""A line `NAME?` of a table of contents stands for the pages that fit it and are in no line of their own.

So a page that was put into docs/ finds its way into the navigation, and one that is not there is no fault.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", fill_in)
    return {"parallel_read_safe": True}


def fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replaces such lines of the front page, which has all tables of contents."""
    if docname != "index":
        return
    root, listed = Path(app.srcdir), set(re.findall(r"^[\w/-]+$", source[0], re.MULTILINE)) | {"index"}

    def pages(match: re.Match[str]) -> str:
        found = {str(path.relative_to(root).with_suffix("")) for path in root.glob(f"{match[1]}.md")} - listed
        listed.update(found)
        return "".join(f"{page}\n" for page in sorted(found))

    source[0] = re.sub(r"^([\w/*-]+)\?\n", pages, source[0], flags=re.MULTILINE)
