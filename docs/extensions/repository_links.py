"""Documents link to files beside docs/ as a reader of the repository needs it; here those are pages too."""

from __future__ import annotations

import posixpath
import re

from sphinx.application import Sphinx

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", to_pages)
    return {"parallel_read_safe": True}


def to_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Rewrites links that lead out of docs/."""
    folder = posixpath.dirname(docname)
    up = "../" * (docname.count("/") + 1)
    for name, page in PAGES.items():
        here = posixpath.relpath(page, folder or ".")
        source[0] = re.sub(rf"\]\({re.escape(up + name)}(?=[)#])", f"]({here}", source[0])
