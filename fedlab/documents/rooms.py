"""Prints docs/pictures/rooms.svg: the packages, their rooms, and who may import whom, as the folders are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TITLE = "The packages, their rooms, and who may import whom: fedlab the others, they common, it fedpvr.v1."
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" class="fedpvr-picture" viewBox="0 0 {width} {height}" role="img"
     aria-label="{title}" font-size="12.5" fill="currentColor"
     font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif">
<style>
  .fedpvr-picture {{ color: #1f2328; --color-brand-primary: #0b5d78; }}
  @media (prefers-color-scheme: dark) {{
    .fedpvr-picture {{ color: #d7dde3; --color-brand-primary: #6cc4e0; }}
  }}
</style>
"""
PLAIN = 'fill-opacity=".05" stroke="currentColor" stroke-opacity=".45"'
ACCENT = (
    'fill-opacity=".12" style="stroke:var(--color-brand-primary, #0b5d78);'
    'fill:var(--color-brand-primary, #0b5d78)"'
)
TOP, GAP, LINE, NOTE = 14, 14, 21, 34
MOST_IN_A_COLUMN = 10


@dataclass(frozen=True)
class Box:
    """A package: its name and what is in it, at its place."""

    name: str
    about: str
    rooms: tuple[str, ...]
    x: int
    y: int
    width: int
    look: str = PLAIN

    @property
    def lines(self) -> int:
        """Of the longest column."""
        columns = 1 if len(self.rooms) <= MOST_IN_A_COLUMN else 2
        return -(-len(self.rooms) // columns)

    @property
    def height(self) -> int:
        """Down to the last room."""
        return 58 + LINE * self.lines

    def drawn(self) -> str:
        """As SVG."""
        size = f'width="{self.width}" height="{self.height}"'
        text = f'<rect x="{self.x}" y="{self.y}" {size} rx="8" {self.look}/>\n'
        text += _text(self.x + 14, self.y + 24, self.name, ' font-size="15" font-weight="600"')
        text += _text(self.x + 14, self.y + 42, self.about, ' font-size="11.5" opacity=".75"')
        for k, room in enumerate(self.rooms):
            column, line = divmod(k, self.lines)
            text += _text(self.x + 14 + column * (self.width - 24) // 2, self.y + 65 + line * LINE, room)
        return text


def rooms(package: str) -> tuple[str, ...]:
    """The folders of a package, in the order of their names."""
    return tuple(sorted(path.parent.name for path in (ROOT / package).glob("*/__init__.py")))


def picture() -> str:
    """The whole drawing."""
    contract = tuple(sorted(path.name for path in (ROOT / "proto/fedpvr/v1").glob("*.proto")))
    server = Box("fedserver", "the server", rooms("fedserver"), 415, TOP, 215, ACCENT)
    client = Box("fedclient", "the client", rooms("fedclient"), 415, TOP + server.height + GAP, 215, ACCENT)
    below = client.y + client.height + GAP
    inspector = Box("fedwire", "the inspector", rooms("fedwire"), 415, below, 215, ACCENT)
    shared = Box("common", "what all agree on", rooms("common"), 205, TOP, 165)
    lab = Box("fedlab", "around a federation", rooms("fedlab"), 675, TOP, 165)
    boxes = (Box("fedpvr.v1", "the contract", contract, 20, TOP, 140), shared, server, client, inspector, lab)
    arrows = _arrow(203, TOP + 60, 164, TOP + 60)
    for k, box in enumerate((server, client, inspector)):
        middle = box.y + min(60, box.height // 2)
        arrows += _arrow(413, middle, 374, min(middle, TOP + shared.height - 40 + 15 * k))
        arrows += _arrow(673, min(middle, TOP + lab.height - 40 + 15 * k), 634, middle)
    height = inspector.y + inspector.height + NOTE
    note = "An arrow means: may import. Server and client never import each other."
    end = _text(20, height - 10, note, ' opacity=".8"') + "</svg>\n"
    head = HEAD.format(width=860, height=height, title=TITLE)
    return head + "".join(box.drawn() for box in boxes) + arrows + end


def _arrow(x1: int, y1: int, x2: int, y2: int) -> str:
    """A line to the left with a head at its end."""
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx, dy = 9 * (x2 - x1) / length, 9 * (y2 - y1) / length
    left, right = (f"{x2 - dx + s * dy / 2:.1f},{y2 - dy - s * dx / 2:.1f}" for s in (1, -1))
    ends = f'x1="{x1}" y1="{y1}" x2="{x2 - dx / 2:.1f}" y2="{y2 - dy / 2:.1f}"'
    line = f'<line {ends} stroke="currentColor" stroke-opacity=".6" stroke-width="1.8"/>'
    return f'{line}<polygon points="{x2},{y2} {left} {right}" opacity=".6"/>\n'


def _text(x: int, y: int, words: str, look: str = "") -> str:
    return f'<text x="{x}" y="{y}"{look}>{words}</text>\n'


if __name__ == "__main__":
    print(picture(), end="")
