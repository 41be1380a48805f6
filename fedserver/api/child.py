"""A server as the child of another program: `python -m fedserver.api.child PARENT FLAG...`."""

from __future__ import annotations

import sys

from common.processes.parent import end_with_parent


def main() -> None:
    """`fedserver run` that ends when the program does that started it, however that ends."""
    end_with_parent(parent=int(sys.argv[1]))
    from fedserver.cli import main as command

    command(["run", *sys.argv[2:]], prog_name="fedserver")


if __name__ == "__main__":
    main()
