"""What training frees it needs again in the next step, so it keeps it until the round is over.

glibc gives large blocks back to the kernel at once, and every page of the next ones is fetched and cleared
again: 3 to 9 % of the time of ResNet-8 and VGG-11. Between rounds a client keeps only what transfers need.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from common.processes import memory

KEPT_BYTES = 16 << 20
"""Between rounds: the frames of a transfer that are on their way."""


@contextmanager
def kept_until_the_end() -> Iterator[None]:
    """Memory that is freed inside stays with the process; at the end what is free goes back.

    Unless so little has come that giving it back, and with it what transfers need, would cost more.
    """
    memory.keep_all()
    before = memory.resident_bytes()
    try:
        yield
    finally:
        memory.keep_up_to(KEPT_BYTES)
        if memory.resident_bytes() - before > KEPT_BYTES:
            memory.give_back()
