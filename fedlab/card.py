"""What a model says of itself, for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from common.errors import printable
from common.records.provenance import Part, Provenance

MOST_SHOWN = 200
"""Characters of a line that a file has made longer than anybody reads."""


def show_card(card: Provenance, console: Console) -> None:
    """Prints it; what the file says is shown as text, whatever it is."""
    for line in _lines(card):
        console.print(printable(line, MOST_SHOWN), highlight=False)
    if card.rounds_without:
        without = f"{card.rounds_without} of {card.round} rounds without somebody who was drawn for them"
        console.print(without, style="bold red", highlight=False)
    table = Table("client", "examples", "rounds", "which", "left out")
    for part in card.clients:
        cells = part.name, f"{part.examples:,}", str(part.rounds), part.took_part or "-", _left_out(part)
        table.add_row(*(printable(cell, MOST_SHOWN) for cell in cells))
    console.print(table)
    if card.more_clients:
        console.print(f"and {card.more_clients} more clients", highlight=False)


def _lines(card: Provenance) -> list[str]:
    data = "data at the clients" if card.dataset == "none" else card.dataset
    classes = f"{card.num_classes} classes"
    if card.class_names:
        classes += ": " + ", ".join(card.class_names)
    return [
        f"run {card.run_id}, round {card.round} of {card.rounds}: {card.algorithm}, {card.model} on {data}",
        f"settings {card.config[:16]}, model {card.fingerprint[:16]}, {card.num_clients} clients",
        classes,
    ]


def _left_out(part: Part) -> str:
    reasons = [f"{which} ({reason})" for reason, which in part.left_out.items()]
    if part.evicted_in is not None:
        reasons.append(f"evicted in round {part.evicted_in}")
    return "; ".join(reasons) or ("-" if part.rounds else "in no round")
