"""The server itself: whether it lets this client in, its clock, the run and the speed of the link."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import AccessError, FedError, WrongRunError
from fedclient.check.findings import Finding, error, failed, ok, skipped, warning
from fedclient.rpc.probe import MAX_DOWN_BYTES, MAX_UP_BYTES, Probed, Terms, probe
from fedclient.transport.base import Transport

CLOCK_WARNED_S, CLOCK_WRONG_S = 5.0, 300.0
PREPARING_S = 10.0
"""How long a run may be in preparation before the checks go on without it."""
FIRST_BYTES = 1 << 15
ENOUGH_S = 0.3
"""A transfer that takes so long tells the speed."""
TRIES = 3
SLOW_BITS = 1e6
SLOW_S = 60.0
"""What a round's tensors may take."""
_NOT_THERE = "UNIMPLEMENTED"


@dataclass(frozen=True)
class Speed:
    """Of a link, in bits a second."""

    down: float
    up: float
    latency_s: float
    """There and back."""

    def transfer_s(self, terms: Terms) -> float:
        """What the tensors of a round take, there and back."""
        return 8 * terms.down_bytes / self.down + 8 * terms.up_bytes / self.up


def meet(transport: Transport, name: str) -> tuple[Probed | None, list[Finding]]:
    """Asks the server until its run is prepared, but not for long."""
    try:
        until, probed = time.monotonic() + PREPARING_S, probe(transport, name)
        while probed.terms is None and time.monotonic() < until:
            time.sleep(0.5)
            probed = probe(transport, name)
    except FedError as reason:
        return None, _not_met(reason)
    found = [ok("access", "the server lets this client in"), ok("protocol", "the same")]
    return probed, [*found, clock_finding(probed.ahead_s, probed.seconds / 2), run_finding(probed)]


def _not_met(reason: FedError) -> list[Finding]:
    """Which of the checks an error belongs to."""
    if isinstance(reason, WrongRunError):
        return [ok("access", "the server lets this client in"), failed("protocol", reason)]
    if _NOT_THERE in str(reason):
        remedy = "install this release there, or do without the checks that need it"
        return [warning("protocol", "the server is of a release that cannot be checked", remedy)]
    if not isinstance(reason, AccessError):
        return [error("access", str(reason), "look at the server's log")]
    return [failed("access", reason)]


def clock_finding(ahead_s: float, doubt_s: float) -> Finding:
    """`ahead_s` is by how much the server's clock is ahead of this one, give or take `doubt_s`."""
    off_s = max(abs(ahead_s) - doubt_s, 0.0) if math.isfinite(ahead_s) else math.inf
    found = f"{abs(ahead_s):.1f} s {'behind' if ahead_s > 0 else 'ahead of'} the server's"
    remedy = "set the clock, here or there, or let NTP do it; certificates and logs go by it"
    if off_s > CLOCK_WRONG_S:
        return error("clock", found, remedy)
    return warning("clock", found, remedy) if off_s > CLOCK_WARNED_S else ok("clock", found)


def run_finding(probed: Probed) -> Finding:
    """What run it is."""
    if probed.terms is None:
        return warning(
            "run", f"run {probed.run_id} is not prepared yet", "check again later, for what is skipped below"
        )
    seat = probed.terms.seat
    shape = "x".join(map(str, seat.model.image_shape))
    return ok("run", f"run {probed.run_id}: {seat.model.name}, {seat.model.num_classes} classes, {shape}")


def link_finding(transport: Transport, name: str, terms: Terms | None) -> tuple[Speed | None, Finding]:
    """Measures the link."""
    try:
        latency_s = min(probe(transport, name).seconds for _ in range(3))
        down = speed(lambda size: probe(transport, name, down=size).seconds - latency_s, MAX_DOWN_BYTES)
        up = speed(lambda size: probe(transport, name, up=size).seconds - latency_s, MAX_UP_BYTES)
    except FedError as reason:
        return None, skipped("link", str(reason))
    found = Speed(down, up, latency_s)
    return found, speed_finding(found, terms)


def speed(transfer: Callable[[int], float], most: int) -> float:
    """Bits a second, from transfers of more and more bytes until one takes long enough; the best counts."""
    best, size = 0.0, FIRST_BYTES
    for _ in range(TRIES):
        seconds = max(transfer(size), 1e-4)
        best = max(best, 8 * size / seconds)
        if seconds > ENOUGH_S:
            break
        size = min(max(2 * size, int(best / 8 * 2 * ENOUGH_S)), most)
    return best


def speed_finding(found: Speed, terms: Terms | None) -> Finding:
    """Whether it is enough for the run."""
    text = f"{_mbit(found.down)} down, {_mbit(found.up)} up, {1000 * found.latency_s:.0f} ms there and back"
    seconds = 0.0 if terms is None else found.transfer_s(terms)
    if terms is not None:
        text += f"; the tensors of a round take {seconds:.1f} s"
    if seconds > SLOW_S or min(found.down, found.up) < SLOW_BITS:
        return warning("link", text, "look for a faster link, or ask for a smaller --codec at the server")
    return ok("link", text)


def _mbit(bits_per_second: float) -> str:
    rate = bits_per_second / 1e6
    return f"{rate:.0f} Mbit/s" if rate >= 10 else f"{rate:.2g} Mbit/s"
