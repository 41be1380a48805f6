"""SVG pictures become part of the page, so that they take its colours, light or dark.

Elsewhere, as in a repository's viewer, their own style follows what the reader prefers.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("doctree-read", put_inside, priority=400)
    return {"parallel_read_safe": True}


def put_inside(app: Sphinx, doctree: nodes.document) -> None:
    """Replaces images that are pictures of ours by what is in their files."""
    for image in list(doctree.findall(nodes.image)):
        path = Path(app.env.relfn2path(image["uri"])[1])
        if path.suffix != ".svg" or "currentColor" not in (text := path.read_text()):
            continue
        drawing = re.sub(r"<style>.*?</style>\n", "", text, flags=re.DOTALL)
        inside = nodes.raw("", f'<div class="picture">{drawing}</div>', format="html")
        alone = isinstance(image.parent, nodes.paragraph) and len(image.parent) == 1
        (image.parent if alone else image).replace_self(inside)
