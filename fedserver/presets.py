"""The settings of every cell of the paper's tables.

The paper gives step sizes and schedules per algorithm; what it leaves open follows its released code:
momentum 0.9 for FedPVR outside S_svr and none for the others. A preset is overridden by whatever else gives a
setting.
"""

from __future__ import annotations

from common.algorithms import ALGORITHMS
from common.errors import ConfigError

_CELLS = [
    (dataset, model, alpha)
    for dataset, alphas in (("cifar10", (0.1, 0.5)), ("cifar100", (0.1, 1.0)))
    for model in ("vgg11", "resnet8")
    for alpha in alphas
]

# Columns in the order of _CELLS: CIFAR-10 with VGG-11 and ResNet-8, then CIFAR-100 with both.
_ETA_L = {
    "fedavg": (0.05, 0.1, 0.1, 0.2, 0.1, 0.05, 0.1, 0.1),
    "scaffold": (0.05, 0.1, 0.1, 0.3, 0.1, 0.1, 0.2, 0.2),
    "fedpvr": (0.05, 0.1, 0.1, 0.3, 0.1, 0.1, 0.1, 0.1),
}
_SCHEDULE = {("scaffold", 0): "multistep", ("scaffold", 6): "cosine"}
_MOMENTUM = {"fedpvr": 0.9}
_PROX = {
    "mu": {"cifar10": 0.1, "cifar100": 0.1},
    "feddyn_alpha": {"cifar10": 0.001, "cifar100": 0.01},
}

NAMES = [f"{dataset}-{model}-a{alpha}" for dataset, model, alpha in _CELLS]


def settings(preset: str, algorithm: str) -> dict[str, str | float]:
    """What a preset says for one algorithm; one without step sizes of its own takes FedAvg's."""
    if preset not in NAMES:
        raise ConfigError(f"unknown preset {preset!r}; choose {', '.join(NAMES)}")
    column = NAMES.index(preset)
    dataset, model, alpha = _CELLS[column]
    found: dict[str, str | float] = {
        "dataset": dataset,
        "model": model,
        "alpha": alpha,
        "num_clients": 10,
        "rounds": 80,
        "local_epochs": 10,
        "batch_size": 256,
        "eta_l": _ETA_L.get(algorithm, _ETA_L["fedavg"])[column],
        "schedule": _SCHEDULE.get((algorithm, column), "constant"),
        "momentum": _MOMENTUM.get(algorithm, 0.0),
        "validation": 0.01,
    }
    prox_setting = ALGORITHMS[algorithm].prox_setting
    if prox_setting is not None:
        found[prox_setting] = _PROX[prox_setting][dataset]
    return found
