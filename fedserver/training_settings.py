"""The settings that say how clients train, and how their models are put together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.algorithms import PROX
from common.algorithms.schedule import SCHEDULES
from common.errors import ConfigError
from common.server_step.local_rules import MAX_PATTERN, MAX_PATTERNS, OUTSIDE_SVR, PLACES, too_many
from fedserver.settings import BELOW_1, COUNT, POSITIVE, Limit, Section

TRAINING = Section.TRAINING
FINITE = Limit(lambda x: 0 <= x < math.inf, "must be finite and not negative")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What a client does in a round, and what the server makes of it."""

    local_epochs: int | None = TRAINING.setting(
        None, "E, passes of each client over its shard per round.", COUNT, if_unset="1"
    )
    local_steps: int | None = TRAINING.setting(
        None,
        "K, minibatch steps per client and round, instead of --local-epochs.",
        COUNT,
        if_unset="as many as the epochs have",
    )
    batch_size: int | None = TRAINING.setting(
        32,
        "B, examples per step, or full for the whole shard.",
        COUNT,
        metavar="B|full",
        word_for_none="full",
    )
    eta_l: float = TRAINING.setting(0.1, "Step size of the clients.", POSITIVE)
    schedule: str = TRAINING.setting(
        "constant",
        "How eta_l changes over the rounds: cosine to zero, or tenfold down at 50 % and 75 %.",
        choices=tuple(SCHEDULES),
    )
    eta_g: float = TRAINING.setting(
        1.0, "Step size of the server; 1 takes the mean of the client models.", POSITIVE
    )
    momentum: float = TRAINING.setting(0.0, "Local momentum, starting at zero in each round.", BELOW_1)
    momentum_on: tuple[str, ...] = TRAINING.setting(
        (),
        "Parameters with momentum: outside-svr, all, a glob or a module's name; repeatable.",
        metavar="outside-svr|all|PATTERN",
        if_unset=OUTSIDE_SVR,
    )
    weight_decay: float = TRAINING.setting(
        0.0, "Times the parameters is added to their gradient, as torch's SGD does.", FINITE
    )
    weight_decay_on: str = TRAINING.setting(
        OUTSIDE_SVR,
        "Parameters with weight decay; with all, c_i has its gradient in it too.",
        choices=PLACES,
    )
    clip_norm: float | None = TRAINING.setting(
        None,
        "Scale the gradient of each step down to this norm, before weight decay and correction.",
        POSITIVE,
        if_unset="as it is",
    )
    clip_on: str = TRAINING.setting(
        OUTSIDE_SVR, "Parameters that are scaled, by the norm of all of them together.", choices=PLACES
    )
    warm_variates: bool = TRAINING.setting(
        False,
        "Start each c_i from the gradient of its client's shard at the first x instead of zero; all clients "
        "send it before round 1.",
    )
    record_drift: bool = TRAINING.setting(
        False,
        "Record how far clients drift in a round, how noisy their gradients are and how much they differ.",
    )
    mu: float | None = TRAINING.setting(
        None, "Weight of the proximal term of fedprox.", POSITIVE, if_unset=f"{PROX['mu']}"
    )
    feddyn_alpha: float | None = TRAINING.setting(
        None, "Weight of the regulariser of feddyn.", POSITIVE, if_unset=f"{PROX['feddyn_alpha']}"
    )
    weighting: str = TRAINING.setting(
        "uniform", "Weights of the mean over clients.", choices=("uniform", "examples")
    )

    def check_training(self) -> None:
        """Raises for settings that exclude each other."""
        if self.local_epochs is not None and self.local_steps is not None:
            raise ConfigError("--local-epochs and --local-steps exclude each other; give one of them")
        if too_many(self.momentum_on):
            raise ConfigError(
                f"--momentum-on takes {MAX_PATTERNS} patterns of {MAX_PATTERN} characters; select modules"
            )
