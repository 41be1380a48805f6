"""Runs a program as if packages of a folder were installed: python -m tests.beside FOLDER PROGRAM ARGUMENT...

For forked processes, which have no PYTHONPATH of their own.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    folder, program, *arguments = sys.argv[1:]
    sys.path.append(folder)
    sys.argv = [program, *arguments]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
