"""How the documentation site is built: `make docs` writes it to build/site, and a warning is an error."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent)]

project = "FedPVR"
author = "The FedPVR authors"
copyright = "2026, the FedPVR authors"
version = release = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["version"]

extensions = [
    "myst_parser",
    "sphinx_click",
    "sphinx.ext.autodoc",
    "code_blocks",
    "command_pages",
    "formulas",
    "inline_pictures",
    "optional_pages",
    "plain_docstrings",
    "public_names",
    "repository_links",
]
exclude_patterns = ["upstream", "extensions"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
highlight_language = "text"
default_role = "code"  # As in docstrings and help.
smartquotes = False  # Flags begin with two dashes.

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"

html_theme = "furo"
html_title = f"FedPVR {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/mark.svg"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b5d78",
        "color-brand-content": "#0b5d78",
        "font-stack": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif",
        "font-stack--monospace": "ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6cc4e0",
        "color-brand-content": "#6cc4e0",
    },
}
