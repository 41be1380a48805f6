"""One target under libFuzzer, until so many executions are done or an input breaks it. Needs atheris."""

from __future__ import annotations

import itertools
import resource
import sys
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["common", "fedserver", "fedclient", "fedwire", "fedlab"]):
    from tests.fuzz.targets import TARGETS

MEASURED_EVERY = 16
"""Measuring memory takes time, so only some executions are measured; all that is kept is measured later."""
ROOM_BYTES = 2 << 30
"""Address space beyond that of the idle process: whoever asks for more at once gets a MemoryError."""


def main(name: str, *options: str) -> None:
    """Searches; `options` are libFuzzer's."""
    target = TARGETS[name]
    numbers = itertools.count()

    def once(data: bytes) -> None:
        if next(numbers) % MEASURED_EVERY:
            target.run(data)
        else:
            target.run_measured(data)

    def mutated(data: bytes, max_size: int, seed: int) -> bytes:
        def plain(part: bytes) -> bytes:
            return bytes(atheris.Mutate(part, len(part) + 32))

        return target.mutate(data, Random(seed), plain)[:max_size]

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    atheris.Setup([sys.argv[0], *options], once, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
