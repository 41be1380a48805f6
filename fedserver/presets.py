"""The settings of every cell of the paper's tables.

The paper gives step sizes and schedules per algorithm; what it leaves open follows its released code:
momentum 0.9 for FedPVR outside S_svr and none for the others. Flags go before a preset, so any of it can be
changed.
"""

from __future__ import annotations

from typing import Any

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

NAMES = [f"{dataset}-{model}-a{alpha}" for dataset, model, alpha in _CELLS]


def settings(preset: str, algorithm: str) -> dict[str, Any]:
    """What a preset says for one algorithm; FedProx and FedDyn take FedAvg's step size."""
    if preset not in NAMES:
        raise ConfigError(f"unknown preset {preset!r}; choose {', '.join(NAMES)}")
    column = NAMES.index(preset)
    dataset, model, alpha = _CELLS[column]
    found: dict[str, Any] = {
        "dataset": dataset,
        "model": model,
        "alpha": alpha,
        "num_clients": 10,
        "rounds": 80,
        "local_epochs": 10,
        "batch_size": 256,
        "eta_l": _ETA_L.get(algorithm, _ETA_L["fedavg"])[column],
        "schedule": _SCHEDULE.get((algorithm, column), "constant"),
        "momentum": 0.9 if algorithm == "fedpvr" else 0.0,
        "validation": 0.01,
    }
    if algorithm == "feddyn":
        found["feddyn_alpha"] = 0.001 if dataset == "cifar10" else 0.01
    if algorithm == "fedprox":
        found["mu"] = 0.1
    return found
