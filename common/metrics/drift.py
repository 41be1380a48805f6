"""What a client measures of its steps as it travels, checked when it comes from a peer."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import WireError
from fedpvr.v1 import federation_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class ClientDrift:
    """What one client measures of its steps and tells: four numbers."""

    drift_svr: float
    """Mean over the steps of ||y_i - x||^2 on S_svr, after each step."""
    drift_sgd: float
    """The same on all other parameters of x."""
    noise_svr: float | None
    """Mean over pairs of successive steps of ||g' - g||^2 / 2 on S_svr; None if there was one step only."""
    noise_sgd: float | None
    """The same on all other parameters of x."""


MOST = 1e30
"""Of a square of a norm that anybody can make use of."""


def to_message(drift: ClientDrift) -> pb.DriftMeasures:
    """The numbers as they travel."""
    return pb.DriftMeasures(
        drift_svr=drift.drift_svr,
        drift_sgd=drift.drift_sgd,
        noise_svr=drift.noise_svr,
        noise_sgd=drift.noise_sgd,
    )


def from_message(message: pb.DriftMeasures) -> ClientDrift:
    """The numbers of a peer; raises for what no square can be."""
    noise = [getattr(message, n) if message.HasField(n) else None for n in ("noise_svr", "noise_sgd")]
    for value in (message.drift_svr, message.drift_sgd, *noise):
        if value is not None and not 0 <= value <= MOST:
            raise WireError.broken_contract(f"measures: squares are from 0 to {MOST:g}, got {value:g}")
    return ClientDrift(
        drift_svr=message.drift_svr, drift_sgd=message.drift_sgd, noise_svr=noise[0], noise_sgd=noise[1]
    )
