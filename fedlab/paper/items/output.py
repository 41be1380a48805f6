"""What an item has made: files in a folder, and the same on one page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from common.page.page import Page
from fedlab.reports import plots
from fedlab.reports.tables import Table


@dataclass(frozen=True)
class Output:
    """Where the tables and pictures of an item go."""

    folder: Path
    page: Page
    tables: dict[str, Table] = field(default_factory=dict)
    """By title, in their order."""

    def table(self, name: str, title: str, table: Table) -> None:
        """Adds a table."""
        table.save(self.folder, name)
        self.tables[title] = table
        self.page.heading(title)
        self.page.table(table)

    def published(self, title: str, table: Table) -> None:
        """Adds a table of the paper's numbers."""
        self.page.heading(title)
        self.page.table(table)

    def pictures(self, name: str, charts: list[plots.Drawn]) -> None:
        """Adds pictures, numbered from 0."""
        for number, chart in enumerate(charts):
            plots.save(chart, self.folder, f"{name}-{number}")
        self.page.charts(charts)
