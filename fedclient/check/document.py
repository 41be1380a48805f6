"""Prints docs/checks.md: what `fedclient check` looks at."""

from __future__ import annotations

from fedclient.check.findings import CHECKS

INTRODUCTION = """\
# Is a site ready?

Written by `python -m fedclient.check.document` (`make docs`) from the table of the checks.

    fedclient check --server 127.0.0.1:50051 --name clinic-a --data pictures

takes the flags of `fedclient run` (and its environment variables) and prints a line for each of these
checks: `ok`, `warning`, `error`, or `skipped` where an earlier finding leaves nothing to look at, each with
what to do. It goes as far as it gets: a closed port does not keep it from reading the pictures. `--json`
prints one document for programs. It ends with 0 if there is no error, else with 1; wrong flags end it with
2.

It joins no run, takes no seat, makes no state directory and leaves no file behind; a client of the same
name may be running meanwhile, with the same state directory. The server answers so many of its probes in a
minute, each with a quarter of a megabyte at the most, and to nobody whom it would not let join.

| check | looks at |
|---|---|
"""


def document() -> str:
    """The whole document."""
    return INTRODUCTION + "".join(f"| {name} | {looks_at} |\n" for name, looks_at in CHECKS.items())


if __name__ == "__main__":
    print(document(), end="")
