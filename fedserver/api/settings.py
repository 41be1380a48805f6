"""The settings of a run as keyword arguments, for whoever checks types; RunConfig says what they mean."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypedDict

from common.data import names as datasets
from common.errors import ConfigError
from common.models import names as models
from fedserver.config import RunConfig
from fedserver.settings import about, flag
from fedserver.task import NO_DATA


class Settings(TypedDict, total=False):
    """Those of `fedserver run` but for model and data set, all optional; docs/settings.md describes them."""

    svr: tuple[str, ...]
    personal: tuple[str, ...]
    freeze: tuple[str, ...]
    init: str | None
    init_missing: str
    input_shape: str | None
    input_dtype: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    loss: str | None
    transform: str | None
    metrics: tuple[str, ...]
    best: str | None
    cka: int
    cka_estimator: str
    probe: int
    calibration: str | None
    num_clients: int
    rounds: int
    algorithm: str
    seed: int
    eval_every: int
    eval_async: bool
    data_dir: str
    image_size: int | None
    alpha: float
    partition: str | None
    equal_shards: bool
    augment: bool | None
    validation: float
    width: float
    local_epochs: int | None
    local_steps: int | None
    batch_size: int | None
    eta_l: float
    schedule: str
    eta_g: float
    momentum: float
    momentum_on: tuple[str, ...]
    weight_decay: float
    weight_decay_on: str
    clip_norm: float | None
    clip_on: str
    warm_variates: bool
    record_drift: bool
    mu: float | None
    feddyn_alpha: float | None
    weighting: str
    clients_per_round: int | None
    min_clients: int | None
    gather: float | None
    lease: float | None
    deadline: float | None
    quorum: float
    variates: str
    codec: tuple[str, ...]
    aggregation: str
    norm_bound: float | None


def configured(given: Settings, **others: str | None) -> RunConfig:
    """The settings that were given, checked; `others` are model and data set, None for the usual one."""
    known = {each.name: each for each in fields(RunConfig)}
    settings: dict[str, Any] = {name: value for name, value in others.items() if value is not None}
    value: Any
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; do you mean {near[0]}?" if near else "; docs/settings.md has all"
            raise ConfigError(f"unknown setting {name!r}{hint}")
        if str(known[name].type).startswith("tuple"):
            settings[name] = (value,) if isinstance(value, str) else tuple(value)
        else:
            settings[name] = value
    if settings.get("input_shape") is not None:
        settings.setdefault("dataset", NO_DATA)
    config = RunConfig(**settings)
    models.require_known(config.model)
    if not config.has_task:
        datasets.require_known(config.dataset)
    return config


def flags(config: RunConfig) -> list[str]:
    """The flags of `fedserver run` that give the same settings."""
    found: list[str] = []
    for each in fields(config):
        value = getattr(config, each.name)
        if value == each.default:
            continue
        if isinstance(value, bool):
            found.append(flag(each.name if value else f"no_{each.name}"))
        elif isinstance(value, tuple):
            found += [f"{flag(each.name)}={item}" for item in value]
        else:
            found.append(f"{flag(each.name)}={about(each).word_for_none if value is None else value}")
    return found
