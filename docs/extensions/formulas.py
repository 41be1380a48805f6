"""Formulas as inline SVG in the colour of the text, drawn by matplotlib: no script, nothing from afar."""

from __future__ import annotations

import html
from functools import cache

import numpy as np
import numpy.typing as npt
from docutils import nodes
from matplotlib import rcParams
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextToPath
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

SIZE = 100
"""Units of the drawing in one em."""
_LETTERS = {
    int(Path.MOVETO): ("M", 1),
    int(Path.LINETO): ("L", 1),
    int(Path.CURVE3): ("Q", 2),
    int(Path.CURVE4): ("C", 3),
    int(Path.CLOSEPOLY): ("Z", 1),
}

rcParams["mathtext.fontset"] = "stix"


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.add_html_math_renderer("drawn", (visit_inline, None), (visit_display, None))
    app.config.html_math_renderer = "drawn"
    return {"parallel_read_safe": True}


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """A formula in a line of text."""
    self.body.append(f'<span class="formula">{drawn(node.astext())}</span>')
    raise nodes.SkipNode


def visit_display(self: HTML5Translator, node: nodes.math_block) -> None:
    """A formula of its own; every line of the source is a line of it."""
    lines = [line for line in node.astext().splitlines() if line.strip()]
    rows = "".join(f"<div>{drawn(line)}</div>" for line in lines)
    self.body.append(f'<div class="formula">{rows}</div>')
    raise nodes.SkipNode


@cache
def drawn(formula: str) -> str:
    """The SVG of a formula; its baseline is that of the text around it."""
    properties, text, to_path = FontProperties(size=SIZE), f"${formula.strip()}$", TextToPath()
    width, height, depth = to_path.get_text_width_height_descent(text, properties, ismath=True)
    box = f"0 {depth - height:.1f} {width:.1f} {height:.1f}"
    style = f"width:{width / SIZE:.3f}em;height:{height / SIZE:.3f}em;vertical-align:{-depth / SIZE:.3f}em"
    label = html.escape(formula.strip(), quote=True)
    path = _path(*map(np.asarray, to_path.get_text_path(properties, text, ismath=True)))
    return f'<svg role="img" aria-label="{label}" viewBox="{box}" style="{style}"><path d="{path}"/></svg>'


def _path(points: npt.NDArray[np.float64], codes: npt.NDArray[np.uint8]) -> str:
    """Lines and curves of matplotlib in SVG's letters; y grows upwards there and downwards here."""
    parts: list[str] = []
    i = 0
    while i < len(points):
        letter, count = _LETTERS[int(codes[i])]
        places = points[i : i + count] if letter != "Z" else ()
        parts.append(letter + " ".join(f"{x:.1f} {-y:.1f}" for x, y in places))
        i += count
    return "".join(parts)
