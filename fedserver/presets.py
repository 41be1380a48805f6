"""The settings of every cell of the paper's tables 2 and 3.

Printed in the paper: data, models, N, E, B, eta_g, eta_l and schedule of FedAvg, SCAFFOLD and FedPVR, alpha
of FedDyn, the share for validation. Not printed, and chosen here:

- eta_l of FedProx and FedDyn is FedAvg's. The paper tunes it on the validation share.
- mu of FedProx is 0.1. The paper tunes it in {0.1, 0.5, 1}.
- Momentum is 0.9 for FedPVR outside S_svr and 0 for the others, as in the released scripts. The paper's
  words, "on the block of weights that are not variance-reduced", would give FedAvg 0.9 everywhere.
- Cosine goes to zero over all rounds, multistep falls tenfold at 50 % and 75 %. The paper has no parameters.
- `resnet8` has GroupNorm, as the released code; the paper's text speaks of BatchNorm, which is `resnet8-bn`,
  in columns of their own with the same step sizes.

A preset is overridden by whatever else gives a setting.
"""

from __future__ import annotations

from common.algorithms import ALGORITHMS
from common.errors import ConfigError

_PRINTED = [
    (dataset, model, alpha)
    for dataset, alphas in (("cifar10", (0.1, 0.5)), ("cifar100", (0.1, 1.0)))
    for model in ("vgg11", "resnet8")
    for alpha in alphas
]

# Columns in the order of _PRINTED: CIFAR-10 with VGG-11 and ResNet-8, then CIFAR-100 with both.
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

ROUNDS = 80
"""After which the paper's table 3 and its figures 3 and C.4 look at x."""
_COLUMNS = {f"{dataset}-{model}-a{alpha}": (dataset, model, alpha) for dataset, model, alpha in _PRINTED}
_WITH_BATCH_NORM = {
    name.replace("resnet8", "resnet8-bn"): (dataset, "resnet8-bn", alpha)
    for name, (dataset, model, alpha) in _COLUMNS.items()
    if model == "resnet8"
}
_COLUMNS |= _WITH_BATCH_NORM
NAMES = list(_COLUMNS)


def settings(preset: str, algorithm: str) -> dict[str, str | float]:
    """What a preset says for one algorithm; one without step sizes of its own takes FedAvg's."""
    if preset not in NAMES:
        raise ConfigError(f"unknown preset {preset!r}; choose {', '.join(NAMES)}")
    dataset, model, alpha = _COLUMNS[preset]
    printed = _PRINTED.index((dataset, model.removesuffix("-bn"), alpha))
    found: dict[str, str | float] = {
        "dataset": dataset,
        "model": model,
        "alpha": alpha,
        "num_clients": 10,
        "rounds": ROUNDS,
        "local_epochs": 10,
        "batch_size": 256,
        "eta_l": _ETA_L.get(algorithm, _ETA_L["fedavg"])[printed],
        "schedule": _SCHEDULE.get((algorithm, printed), "constant"),
        "momentum": _MOMENTUM.get(algorithm, 0.0),
        "validation": 0.01,
    }
    prox_setting = ALGORITHMS[algorithm].prox_setting
    if prox_setting in _PROX:
        found[prox_setting] = _PROX[prox_setting][dataset]
    return found


def normalisation(preset: str) -> str:
    """What the model of a preset has between its layers."""
    return {"vgg11": "none", "resnet8": "group", "resnet8-bn": "batch"}[_COLUMNS[preset][1]]
