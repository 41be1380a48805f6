"""All checks in their order: each as far as the ones before it have got."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.access.credentials import Access
from common.devices.choice import placed
from common.devices.place import Place
from common.errors import FedError
from fedclient.check import data, machine, network, policy, server, training
from fedclient.check.credentials import look_at_credentials
from fedclient.check.findings import CHECKS, Finding, Level, failed, skipped
from fedclient.config import ClientConfig
from fedclient.flags import Flags
from fedclient.rpc.probe import Terms
from fedclient.transport.base import Transport
from fedclient.transport.grpc_transport import WINDOW_BYTES, GrpcTransport
from fedclient.transport.paced import PACED_WINDOW_BYTES, Pace, PacedTransport


@dataclass
class _Seen:
    """What the checks so far have learned."""

    place: Place
    """Where a step is tried."""
    terms: Terms | None = None
    link: server.Speed | None = None


def examine(
    flags: Flags, given: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Findings one by one, in the order of the table; `given` are the flags for credentials."""
    name, state_dir = machine.place_of(flags)
    seen, told = _Seen(placed(flags.device, flags.autocast)), set()
    for finding in _all(flags, name, state_dir, given, environment, seen):
        told.add(finding.check)
        yield finding
    assert told == set(CHECKS), "every check of the table says something"


def _all(
    flags: Flags,
    name: str,
    state_dir: Path,
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    seen: _Seen,
) -> Iterator[Finding]:
    access, finding = look_at_credentials(flags.server, name, **given)
    yield finding
    yield from _server(flags, name, access, environment, seen)
    brought = data.brought(flags)
    examples, shown = (brought.own.examples if brought.own else 0), brought.finding
    if brought.finding.level is Level.SKIPPED and seen.terms is not None:
        examples, shown = data.assigned(flags, seen.terms)
    if seen.terms is None:
        yield skipped("policy", "it is not known what the run asks for")
    else:
        own, encrypted = brought.own is not None, access is not None and access.certs is not None
        yield policy.policy_finding(seen.terms, flags, state_dir, examples, own_data=own, encrypted=encrypted)
    yield from _machine(state_dir, seen)
    yield shown
    yield from _run(_config(flags, name, brought, seen.place), seen, examples)


def _server(
    flags: Flags, name: str, access: Access | None, environment: Mapping[str, str], seen: _Seen
) -> Iterator[Finding]:
    """The way to the server, and the server."""
    proxy = network.proxy_of(flags.server, environment)
    way = [network.proxy_finding(flags.server, proxy), network.address_finding(flags.server)]
    yield from way
    if any(finding.level is Level.ERROR for finding in way):
        yield from _without("port", "link", why="the server has no address")
        return
    port = network.port_finding(flags.server, proxy)
    yield port
    if port.level is Level.ERROR:
        yield from _without("tls", "link", why="nothing answers there")
        return
    tls = network.tls_finding(flags.server, access, proxy)
    yield tls
    if access is None or tls.level is Level.ERROR:
        yield from _without("access", "link", why="no connection comes about")
        return
    transport = _transport(flags, access)
    try:
        yield from _met(transport, name, seen)
    finally:
        transport.close()


def _met(transport: Transport, name: str, seen: _Seen) -> Iterator[Finding]:
    probed, found = server.meet(transport, name)
    told = {finding.check for finding in found}
    for check in _between("access", "run"):
        yield from [finding for finding in found if finding.check == check]
        if check not in told:
            yield skipped(check, "the server does not tell")
    if probed is None:
        yield skipped("link", "the server does not answer")
        return
    seen.terms = probed.terms
    seen.link, finding = server.link_finding(transport, name, probed.terms)
    yield finding


def _transport(flags: Flags, access: Access) -> Transport:
    """As slow as the flags want it to be."""
    up, down = (None if rate is None else Pace(rate) for rate in (flags.uplink, flags.downlink))
    window = WINDOW_BYTES if down is None else PACED_WINDOW_BYTES
    transport = GrpcTransport(flags.server, access.read(), window)
    return transport if up is None and down is None else PacedTransport(transport, up, down)


def _machine(state_dir: Path, seen: _Seen) -> Iterator[Finding]:
    needed = machine.needed_bytes(0 if seen.terms is None else seen.terms.up_bytes)
    disk = machine.try_disk(state_dir, needed)
    yield machine.state_finding(state_dir, disk, machine.is_locked(state_dir))
    if disk.unwritable:
        yield skipped("disk", "nothing can be written there")
    else:
        yield machine.disk_finding(disk, needed)
    yield machine.files_finding(machine.open_files_limit())


def _run(config: ClientConfig, seen: _Seen, examples: int) -> Iterator[Finding]:
    """Examples and model, held against the run's."""
    terms = seen.terms
    if terms is None or not examples or not terms.seat.class_names:
        why = "it is not known what the run asks for" if examples else "there are no examples"
        yield from _without("classes", "training", why=why)
        return
    strange = None if config.own_data is None else data.unknown_classes(config.own_data, terms.seat)
    if strange is not None:
        yield strange
        yield skipped("shape", "not all classes are the run's")
        dataset = None
    else:
        dataset, shape = data.fitted(config, terms, examples)
        if dataset is None:
            yield skipped("classes", "the examples cannot be used")
        elif config.own_data is None:
            yield skipped("classes", "the server's shard has the run's")
        else:
            yield data.classes_finding(dataset.labels, terms.seat.class_names)
        yield shape
    try:
        yield from training.look_at_training(config, terms, dataset, seen.link)
    except FedError as reason:
        yield failed("training", reason)


def _config(flags: Flags, name: str, brought: data.Brought, place: Place) -> ClientConfig:
    return ClientConfig(
        server=flags.server,
        name=name,
        data_dir=flags.data_dir,
        own_data=brought.own,
        site=flags.site,
        threads=flags.threads,
        place=place,
    )


def _between(first: str, last: str) -> list[str]:
    names = list(CHECKS)
    return names[names.index(first) : names.index(last) + 1]


def _without(first: str, last: str, why: str) -> Iterator[Finding]:
    """What need not be tried."""
    return (skipped(check, why) for check in _between(first, last))
