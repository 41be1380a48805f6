"""Settings of one client; everything about training comes from the server."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.access.credentials import Access
from common.devices.place import PROCESSOR, Place
from fedclient.own_data import OwnData
from fedclient.site import Site


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Settings of one client."""

    server: str
    name: str
    data_dir: str = "data"
    own_data: OwnData | None = None
    """None: train on the shard that the server assigns."""
    test_data: OwnData | None = None
    """What x is evaluated on, where the server has no data; None: on what is held out of its own."""
    site: Site = field(default_factory=Site)
    """What the server may ask of this client."""
    threads: int | None = 1
    """Of torch; None: as many as there are cores for each client of this machine."""
    place: Place = PROCESSOR
    """Where the model is trained and evaluated."""
    save_every_s: float = 60.0
    """How long a round goes on without being saved at the most; 0: it is not saved."""
    give_up_s: float = 300.0
    uplink: float | None = None
    """Bits per second that this client sends at the most; None: as fast as it goes."""
    downlink: float | None = None
    """Bits per second that this client receives at the most."""
    access: Access = field(default_factory=Access)
    """What it shows to the server."""
