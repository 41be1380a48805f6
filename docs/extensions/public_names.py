"""`public-names:: PACKAGE` documents what a package offers: the names of its `__all__` or `__dir__`."""

from __future__ import annotations

import importlib
import inspect
from typing import ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True}


class PublicNames(SphinxDirective):  # type: ignore[misc]
    """The names of one package."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, object]] = {}

    def run(self) -> list[nodes.Node]:
        """What stands in the page: an entry for each name, or a sentence where there is none yet."""
        package = importlib.import_module(self.arguments[0])
        listed = getattr(package, "__all__", None) or (dir(package) if "__dir__" in vars(package) else ())
        offered = {name: getattr(package, name) for name in listed if not name.startswith("_")}
        names = [name for name, value in offered.items() if not inspect.ismodule(value)]
        if not names:
            return [nodes.paragraph("", f"{package.__name__} has no names of its own yet; use its commands.")]
        lines = [line for name in names for line in _entry(package.__name__, name, offered[name])]
        found: list[nodes.Node] = self.parse_text_to_nodes("\n".join(lines))
        return found


def _entry(package: str, name: str, value: object) -> list[str]:
    """The reStructuredText of one entry."""
    if inspect.isclass(value):
        return [f".. autoclass:: {package}.{name}", "   :members:", ""]
    kind = "autofunction" if callable(value) else "autodata"
    return [f".. {kind}:: {package}.{name}", ""]
