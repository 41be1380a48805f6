"""The numbers of the paper's tables 2 and 3, to put beside ours (Li et al., CVPR 2023)."""

from __future__ import annotations

_TABLE_2 = (
    "cifar10-vgg11-a0.1",
    "cifar10-resnet8-a0.1",
    "cifar10-vgg11-a0.5",
    "cifar10-resnet8-a0.5",
    "cifar100-vgg11-a0.1",
    "cifar100-resnet8-a0.1",
    "cifar100-vgg11-a1.0",
    "cifar100-resnet8-a1.0",
)
_TABLE_3 = (
    "cifar10-vgg11-a0.1",
    "cifar10-vgg11-a0.5",
    "cifar100-vgg11-a0.1",
    "cifar100-vgg11-a1.0",
    "cifar10-resnet8-a0.1",
    "cifar10-resnet8-a0.5",
    "cifar100-resnet8-a0.1",
    "cifar100-resnet8-a1.0",
)

_ROUNDS = {
    "fedavg": ("55", "90", "15", "15", "100+", "100+", "80", "56"),
    "fedprox": ("52", "75", "16", "20", "100+", "100+", "80", "59"),
    "scaffold": ("39", "57", "14", "9", "80", "61", "36", "25"),
    "feddyn": ("27", "67", "15", "34", "80+", "80+", "24", "51"),
    "fedpvr": ("27", "50", "9", "5", "37", "66", "12", "15"),
}
_SPEED_UP = {
    "fedavg": ("1.0x", "1.0x", "1.0x", "1.0x", "1.0x", "1.0x", "1.0x", "1.0x"),
    "fedprox": ("1.1x", "1.2x", "0.9x", "0.8x", "1.0x", "1.0x", "1.0x", "0.9x"),
    "scaffold": ("1.4x", "1.6x", "1.0x", "1.7x", "> 1.3x", "> 1.6x", "2.2x", "2.2x"),
    "feddyn": ("2.0x", "1.3x", "1.0x", "0.4x", "-", "-", "3.3x", "1.1x"),
    "fedpvr": ("2.0x", "1.8x", "1.6x", "3.0x", "> 2.7x", "> 1.5x", "6.7x", "3.7x"),
}
_TOP_1 = {
    "centralised": (87.5, 87.5, 56.3, 56.3, 83.4, 83.4, 56.8, 56.8),
    "fedavg": (69.3, 80.9, 34.3, 45.0, 64.9, 79.1, 38.8, 47.0),
    "fedprox": (72.1, 80.4, 35.0, 43.2, 66.1, 77.9, 42.0, 47.2),
    "scaffold": (74.1, 83.5, 43.4, 50.6, 66.6, 80.3, 43.8, 52.3),
    "feddyn": (77.4, 80.1, 43.8, 45.2, 63.8, 72.9, 36.4, 48.1),
    "fedpvr": (78.2, 84.9, 43.5, 58.0, 69.3, 83.6, 43.5, 52.3),
}
_COPIES = {
    "fedavg": ("2x", "2x"),
    "fedprox": ("2x", "2x"),
    "scaffold": ("4x", "4x"),
    "feddyn": ("2x", "2x"),
    "fedpvr": ("2.1x", "2.02x"),
}

TARGETS = {"cifar10": 0.66, "cifar100": 0.44}
"""Accuracies that table 2 counts the rounds to."""
ROUNDS_AT_MOST = 100
"""Where table 2 stops to count."""
ROUND = 80
"""After which table 3 and figures 3 and C.4 look at x."""
ETA_L = (0.05, 0.1, 0.2, 0.3)
"""What the step size is tuned in."""
MU = (0.1, 0.5, 1.0)
"""What mu of FedProx is tuned in."""
CENTRAL_ETA = (0.01, 0.05, 0.1)
CENTRAL_MOMENTUM = (0.9, 0.95)
CENTRAL_EPOCHS = 800
SEEDS = 3

Cells = dict[tuple[str, str], str]
"""An entry of a table by column and method."""

ROUNDS: Cells = {
    (column, method): value
    for method, values in _ROUNDS.items()
    for column, value in zip(_TABLE_2, values, strict=True)
}
"""Table 2: rounds to the target; a plus where it was not reached in so many."""
SPEED_UP: Cells = {
    (column, method): value
    for method, values in _SPEED_UP.items()
    for column, value in zip(_TABLE_2, values, strict=True)
}
"""Table 2: speed-up over FedAvg."""
TOP_1: Cells = {
    (column, method): str(value)
    for method, values in _TOP_1.items()
    for column, value in zip(_TABLE_3, values, strict=True)
}
"""Table 3: top-1 accuracy after 80 rounds, in per cent."""
COPIES: Cells = {
    (column, method): values["resnet8" in column] for method, values in _COPIES.items() for column in _TABLE_3
}
"""Table 3: copies of the model that a client and the server exchange in a round."""
