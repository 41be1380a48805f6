"""FedProx (Li et al., MLSys 2020): a proximal term mu/2 * ||y - x||^2 in every client's loss."""

from __future__ import annotations

from common.algorithms.base import Algorithm


class FedProx(Algorithm):
    """FedAvg with a pull towards x."""

    prox_setting = "mu"
    prox_default = 0.1
