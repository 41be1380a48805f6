"""The flags of `fedclient run`, checked as far as that goes without torch and the server."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.access import cli as access_cli
from common.bit_rate import bits_per_second
from common.data import names as datasets
from common.devices.names import OFF
from common.errors import ConfigError
from common.installed.allowed import load_allowed
from common.names import require_name
from fedclient.site import Site

STATE = Path(".fedclient")
"""Where state directories are unless somebody says where."""


def rate(_: object, parameter: Any, text: str | None) -> float | None:
    """Callback of a flag that takes a speed."""
    return None if text is None else bits_per_second(parameter.opts[0], text)


def threads(_: object, parameter: Any, text: str) -> int | None:
    """Callback of --threads; None is auto."""
    if text != "auto" and not (text.isdecimal() and int(text) > 0):
        raise ConfigError(f"{parameter.opts[0]} must be a number of threads from 1 on, or auto, got {text!r}")
    return None if text == "auto" else int(text)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags of `fedclient run` but for credentials; what can be checked at once is checked."""

    server: str
    name: str | None
    replicas: int | None
    state_dir: Path | None
    state_root: Path | None
    dataset: str | None
    shard: str | None
    partition: Path | None
    data: Path | None
    test: str | None
    data_dir: str
    threads: int | None
    device: str
    site_file: Path | None
    model: str | None
    allow_plugin: tuple[str, ...]
    max_parameters: int
    max_steps: int
    save_every: float
    give_up: float
    uplink: float | None
    downlink: float | None
    capture: Path | None
    autocast: str = OFF
    worker: int = 0
    """Which of the clients of one command or state root it is, from 0: they share out the GPUs."""

    def __post_init__(self) -> None:
        access_cli.require_address("--server", self.server)
        if self.state_root is not None and (self.name is not None or self.state_dir is not None):
            raise ConfigError(
                "--state-root gives the name and the state directory; leave out --name and --state-dir"
            )
        require_name(self.own_name)
        if self.shard is not None and self.dataset is None:
            raise ConfigError("--shard goes with --dataset")
        if self.partition is not None and self.shard is None and self.replicas is None:
            raise ConfigError(
                "--partition goes with --dataset and --shard I/N, which chooses one of its shards"
            )
        if self.data is not None and self.dataset is not None:
            raise ConfigError("--data and --dataset exclude each other; give one of them")
        if self.test is not None and self.data is None and self.dataset is None:
            raise ConfigError("--test goes with data of the client's own: give --data or --dataset too")
        if self.test is not None and not self.tests_pictures:
            datasets.require_known(self.test)
        if self.dataset is not None:
            datasets.require_known(self.dataset)
        load_allowed(self.site.plugins)  # Raises for what cannot be allowed.
        if self.site_file is not None:
            from fedclient.policy.policy import read_policy

            read_policy(self.site_file)
        if self.replicas is not None and self.shard is not None:
            raise ConfigError(
                "--replicas gives each replica its part of --dataset; leave out --shard, or --replicas"
            )

    @property
    def site(self) -> Site:
        """What the server may ask for."""
        return Site(
            model=self.model,
            plugins=frozenset(self.allow_plugin),
            max_parameters=self.max_parameters,
            max_steps=self.max_steps,
        )

    @property
    def tests_pictures(self) -> bool:
        """Whether --test is a folder, and not the name of a data set."""
        return self.test is not None and Path(self.test).is_dir()

    def of_replicas(self) -> list[Flags]:
        """The flags of each replica: its name is NAME-1, NAME-2, ..., and what it has of its own follows.

        A replica's folder is in --state-dir, its pictures are in --data and --test and its capture in
        --capture, all under its name; of --dataset it has its share.
        """
        assert self.replicas is not None, "there are replicas where it is said how many"
        if self.state_root is not None:
            return [replace(self, replicas=None)] * self.replicas
        return [self._of_replica(k, self.replicas) for k in range(self.replicas)]

    def _of_replica(self, k: int, number: int) -> Flags:
        name = f"{self.own_name}-{k + 1}"
        return replace(
            self,
            replicas=None,
            worker=k,
            name=name,
            state_dir=(self.state_dir or STATE) / name,
            data=self.data and self.data / name,
            test=f"{self.test}/{name}" if self.tests_pictures else self.test,
            shard=self.dataset and f"{k}/{number}",
            capture=self.capture and self.capture / f"{name}.fedwire",
        )

    @property
    def own_name(self) -> str:
        """The client's name, unless a state root gives it one."""
        return self.name or socket.gethostname()
