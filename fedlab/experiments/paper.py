"""The numbers of the paper's tables, to put beside ours (Li et al., CVPR 2023, tables 1 and 2)."""

from __future__ import annotations

COLUMNS = [
    ("cifar10", "vgg11", 0.1),
    ("cifar10", "vgg11", 0.5),
    ("cifar100", "vgg11", 0.1),
    ("cifar100", "vgg11", 1.0),
    ("cifar10", "resnet8", 0.1),
    ("cifar10", "resnet8", 0.5),
    ("cifar100", "resnet8", 0.1),
    ("cifar100", "resnet8", 1.0),
]

TOP1 = {
    "fedavg": (69.3, 80.9, 34.3, 45.0, 64.9, 79.1, 38.8, 47.0),
    "fedprox": (72.1, 80.4, 35.0, 43.2, 66.1, 77.9, 42.0, 47.2),
    "scaffold": (74.1, 83.5, 43.4, 50.6, 66.6, 80.3, 43.8, 52.3),
    "feddyn": (77.4, 80.1, 43.8, 45.2, 63.8, 72.9, 36.4, 48.1),
    "fedpvr": (78.2, 84.9, 43.5, 58.0, 69.3, 83.6, 43.5, 52.3),
    "centralised": (87.5, 87.5, 56.3, 56.3, 83.4, 83.4, 56.8, 56.8),
}
"""Top-1 accuracy after 80 rounds, in per cent."""

ROUNDS = {
    "fedavg": ("55", "15", "100+", "80", "90", "15", "100+", "56"),
    "fedprox": ("52", "16", "100+", "80", "75", "20", "100+", "59"),
    "scaffold": ("39", "14", "80", "36", "57", "9", "61", "25"),
    "feddyn": ("27", "15", "80+", "24", "67", "34", "80+", "51"),
    "fedpvr": ("27", "9", "37", "12", "50", "5", "66", "15"),
}
"""Rounds to 66 % (CIFAR-10) or 44 % (CIFAR-100)."""

TARGETS = {"cifar10": 0.66, "cifar100": 0.44}
