"""A client from its identity to the end of its run."""

from __future__ import annotations

import torch

from common.errors import ConfigError, RunError
from common.events import Emit
from common.wire.capture import CaptureWriter
from fedclient.config import ClientConfig
from fedclient.flags import Flags
from fedclient.own_data import OwnData, OwnDataset, OwnPictures
from fedclient.replicas.identity import Identity
from fedclient.run.daemon import Daemon


def live(identity: Identity, emit: Emit) -> None:
    """Takes part in a run until it ends; raises if it ended early."""
    flags = identity.flags
    # Not before forks: whoever has looked for a GPU makes it unusable for its children.
    if flags.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU here; leave it out, or install torch with CUDA")
    config = ClientConfig(
        server=flags.server,
        name=identity.name,
        data_dir=flags.data_dir,
        own_data=own_data(flags, emit),
        site=flags.site,
        threads=flags.threads,
        device=flags.device,
        give_up_s=flags.give_up,
        uplink=flags.uplink,
        downlink=flags.downlink,
        access=identity.access,
    )
    capture = CaptureWriter(flags.capture, emit) if flags.capture is not None else None
    end = Daemon(config, identity.state, emit, capture).run()
    if end.reason:
        raise RunError(f"the run ended early: {end.reason}")


def own_data(flags: Flags, emit: Emit) -> OwnData | None:
    """The data that a client brings along, if it does."""
    if flags.dataset is not None:
        return OwnDataset(flags.dataset, flags.data_dir, flags.shard, emit, flags.partition)
    return OwnPictures(flags.data, emit) if flags.data is not None else None
