"""A client from its identity to the end of its run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from common.access.credentials import Access
from common.devices.choice import placed
from common.devices.events import Computing
from common.errors import RunError
from common.events import Emit
from common.installed.allowed import load_allowed
from common.models.build import build_model
from common.wire.capture import CaptureWriter
from fedclient.config import ClientConfig
from fedclient.flags import Flags
from fedclient.given import Given
from fedclient.keys.signatures import signer_of
from fedclient.outbox.log import Outbox, Signer
from fedclient.own_data import OwnData, OwnDataset, OwnPictures
from fedclient.policy.events import PolicyInForce
from fedclient.policy.facts import Facts
from fedclient.policy.gate import Gate
from fedclient.policy.policy import Policy, policy_of
from fedclient.policy.told import ToldData
from fedclient.replicas.identity import Identity
from fedclient.rpc.round_stream import RunEnded
from fedclient.run.daemon import Daemon


def live(identity: Identity, emit: Emit, given: Given | None = None) -> RunEnded:
    """Takes part in a run until it ends; raises if it ended early. `given` has objects of a program."""
    given = given or Given()
    flags = identity.flags
    place = placed(flags.device, flags.autocast, flags.worker)  # Not before forks.
    if not place.is_plain:
        emit(Computing(client=identity.name, device=str(place.device), autocast=place.autocast))
    policy, gate = _policy(identity, emit)
    site = replace(flags.site, plugins=frozenset(policy.modules), own_model=given.build is not None)
    load_allowed(site.plugins)
    own = given.data or own_data(flags, emit)
    config = ClientConfig(
        server=flags.server,
        name=identity.name,
        data_dir=flags.data_dir,
        own_data=None if own is None else ToldData(own, policy),
        test_data=given.test or _test_data(flags, emit),
        site=site,
        threads=flags.threads,
        place=place,
        save_every_s=flags.save_every,
        give_up_s=flags.give_up,
        uplink=flags.uplink,
        downlink=flags.downlink,
        access=identity.access,
    )
    capture = CaptureWriter(flags.capture, emit) if flags.capture is not None else None
    build = given.build or build_model
    end = Daemon(config, identity.state, emit, capture, build=build, gate=gate).run()
    if end.reason:
        raise RunError(f"the run ended early: {end.reason}")
    return end


def _policy(identity: Identity, emit: Emit) -> tuple[Policy, Gate | None]:
    """What may leave, with the code that flags allow, and what sees to it where there is a site.toml."""
    flags, state_dir, access = identity.flags, identity.state.path, identity.access
    found = policy_of(flags.site_file, state_dir)
    policy, path = found or (Policy(), None)
    policy = policy.allowing(*flags.allow_plugin)
    if path is None:
        return policy, None
    outbox = Outbox(state_dir, _signer(access), emit)
    emit(PolicyInForce(client=identity.name, file=path, outbox=outbox.path))
    facts = Facts(server=flags.server, encrypted=access.certs is not None)
    return policy, Gate(policy.allowing(flags.model), state_dir, outbox, facts)


def _signer(access: Access) -> Signer | None:
    """The key of the site's certificate, if it has one."""
    if access.certs is None or access.read().certificate is None:
        return None
    return signer_of(access.files()[1])


def own_data(flags: Flags, emit: Emit) -> OwnData | None:
    """The data that a client brings along, if it does."""
    if flags.dataset is not None:
        return OwnDataset(flags.dataset, flags.data_dir, flags.shard, emit, flags.partition)
    return OwnPictures(flags.data, emit) if flags.data is not None else None


def _test_data(flags: Flags, emit: Emit) -> OwnData | None:
    if flags.test is None:
        return None
    if flags.tests_pictures:
        return OwnPictures(Path(flags.test), emit)
    return OwnDataset(flags.test, flags.data_dir, None, emit, split="test")
