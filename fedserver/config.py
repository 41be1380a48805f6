"""The settings of one run, validated once."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from common.algorithms import ALGORITHMS
from common.algorithms.schedule import SCHEDULES
from common.errors import ConfigError
from common.server_step.robust import Robustness
from common.wire.codecs import Codecs

WEIGHTINGS = ("uniform", "examples")
VARIATES = ("explicit", "derived")
MAX_CLIENTS = 10_000
PROX_WEIGHT_DEFAULTS = {"mu": 0.1, "feddyn_alpha": 0.01}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of one run, in the paper's symbols where it has one."""

    algorithm: str = "fedpvr"
    model: str = "cnn"
    """Built-in name or module:factory."""
    dataset: str = "digits"
    """Built-in name or module:factory."""
    data_dir: str = "data"
    """Where data sets that are not built in are read from and downloaded to."""
    image_size: int | None = None
    """Height and width that images are brought to; None leaves them."""
    width: float = 1.0
    """Factor on the number of channels of a built-in model."""
    num_clients: int = 4
    """N."""
    rounds: int = 20
    """R."""
    local_epochs: int | None = None
    """E; 1 if neither this nor `local_steps` is given."""
    local_steps: int | None = None
    """K."""
    batch_size: int | None = 32
    """B; None is the whole shard in every step."""
    eta_l: float = 0.1
    """Local step size."""
    schedule: str = "constant"
    """How eta_l changes over the rounds."""
    eta_g: float = 1.0
    """Server step size; 1 replaces x by the mean of the y_i."""
    momentum: float = 0.0
    """Local momentum outside S_svr; buffers start at zero each round."""
    mu: float | None = None
    """Weight of the proximal term of FedProx; 0.1 if not given."""
    feddyn_alpha: float | None = None
    """Weight of the regulariser of FedDyn; 0.01 if not given."""
    svr: tuple[str, ...] = ()
    """Patterns that select S_svr; empty leaves it to the algorithm."""
    alpha: float = 0.5
    """Concentration of the Dirichlet partition; small means very different clients."""
    partition: str | None = None
    """File with ready-made shards instead of the Dirichlet partition."""
    augment: bool | None = None
    """Random flip and crop; None leaves it to the data set."""
    validation: float = 0.0
    """Share of every shard that its client keeps for validation."""
    weighting: str = "uniform"
    """Weights of the mean over clients."""
    aggregation: str = "mean"
    """How updates are put together: mean, median or trimmed:F."""
    norm_bound: float | None = None
    """Updates larger than this many times the median are left out; None: none is."""
    clients_per_round: int | None = None
    """S, clients drawn for each round; None: all."""
    gather: float | None = None
    """Seconds without a newcomer after which N is who is here, `num_clients` at least; None: N is given."""
    min_clients: int | None = None
    """Clients with which the run starts; the others may join later. None: all."""
    lease: float | None = None
    """Seconds without a sign of life after which a client is not waited for; None: it always is."""
    deadline: float | None = None
    """Seconds after which a round closes without those who have not answered; None: it waits for all."""
    quorum: float = 0.5
    """Share of a round's clients whose updates must be in before deadline or lease leave anybody out."""
    variates: str = "explicit"
    """Whether control variates are sent, or computed from the models wherever both sides can."""
    codec: tuple[str, ...] = ()
    """How tensors are coded: a name for updates, or down=NAME, up=NAME, control=NAME."""
    seed: int = 0
    eval_every: int = 1
    """Evaluate after every n-th round; 0 only after the last, which is always evaluated."""

    cka: int = 0
    """Test images for the similarity of client models by layer, wherever x is evaluated; 0 leaves it out."""

    def __post_init__(self) -> None:
        self._require_choice("algorithm", tuple(ALGORITHMS))
        self._require_choice("weighting", WEIGHTINGS)
        self._require_choice("schedule", tuple(SCHEDULES))
        self._require_choice("variates", VARIATES)
        counts = ("num_clients", "rounds", "local_epochs", "local_steps", "batch_size", "image_size")
        for name in (*counts, "clients_per_round", "min_clients"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{_flag(name)} must be at least 1, got {value}")
        for name in ("eta_l", "eta_g", "alpha", "width"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{_flag(name)} must be positive, got {value}")
        if self.num_clients > MAX_CLIENTS:
            raise ConfigError(f"--num-clients must be at most {MAX_CLIENTS}, got {self.num_clients}")
        for name in ("clients_per_round", "min_clients"):
            if (getattr(self, name) or 0) > self.num_clients:
                raise ConfigError(
                    f"{_flag(name)} must be at most --num-clients, got {getattr(self, name)} of "
                    f"{self.num_clients}"
                )
        if self.gather is not None and self.min_clients is not None:
            raise ConfigError("--gather and --min-clients exclude each other; give one of them")
        for name in ("deadline", "lease", "gather"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{_flag(name)} must be positive, got {getattr(self, name)}")
        if not 0 < self.quorum <= 1:
            raise ConfigError(f"--quorum must be above 0 and at most 1, got {self.quorum}")
        if self.robustness.aggregation != "mean" and self.weighting != "uniform":
            raise ConfigError(f"--aggregation {self.aggregation} goes with --weighting uniform only")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"--momentum must be from 0 to below 1, got {self.momentum}")
        if not 0 <= self.validation < 1:
            raise ConfigError(f"--validation must be from 0 to below 1, got {self.validation}")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"--seed must be from 0 to 4294967295, got {self.seed}")
        if self.cka == 1 or self.cka < 0:
            raise ConfigError(f"--cka must be 0 or at least 2, got {self.cka}")
        if self.eval_every < 0:
            raise ConfigError(f"--eval-every must not be negative, got {self.eval_every}")
        if self.local_epochs is not None and self.local_steps is not None:
            raise ConfigError("--local-epochs and --local-steps exclude each other; give one of them")
        if self.svr and self.algorithm != "fedpvr":
            raise ConfigError(f"--svr goes with --algorithm fedpvr; {self.algorithm} has its own S_svr")
        self._check_algorithm()
        Codecs.parsed(self.codec)
        if self.partition is not None and not Path(self.partition).is_file():
            raise ConfigError(
                f"--partition {self.partition}: no such file; write one with: fedlab partition --out"
            )

    def _check_algorithm(self) -> None:
        chosen = ALGORITHMS[self.algorithm]
        for name in PROX_WEIGHT_DEFAULTS:
            value = getattr(self, name)
            if value is not None and name != chosen.pull_setting:
                raise ConfigError(f"{_flag(name)} does not go with --algorithm {self.algorithm}")
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{_flag(name)} must be positive, got {value}")
        if self.variates == "derived" and not chosen.reduces_variance:
            having = ", ".join(name for name, kind in ALGORITHMS.items() if kind.reduces_variance)
            raise ConfigError(
                f"--variates derived needs a control variate to derive ({having}), "
                f"--algorithm {self.algorithm} has none"
            )
        if chosen.keeps_h and (self.eta_g != 1 or self.weighting != "uniform"):
            raise ConfigError(
                f"--algorithm {self.algorithm} is defined for --eta-g 1 and --weighting uniform only"
            )

    @property
    def prox_weight(self) -> float:
        """Weight of y_i - x in the local gradient; 0 for an algorithm without."""
        setting = ALGORITHMS[self.algorithm].pull_setting
        if setting is None:
            return 0.0
        value = getattr(self, setting)
        return PROX_WEIGHT_DEFAULTS[setting] if value is None else float(value)

    @property
    def robustness(self) -> Robustness:
        """Which updates count, and how they are put together."""
        return Robustness(self.aggregation, self.norm_bound)

    @property
    def codecs(self) -> Codecs:
        """The codecs by what they are for."""
        return Codecs.parsed(self.codec)

    def _require_choice(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ConfigError(f"{_flag(name)} must be one of {', '.join(choices)}, got {value!r}")

    def as_dict(self) -> dict[str, object]:
        """Plain values for config.json."""
        return asdict(self) | {"batch_size": "full" if self.batch_size is None else self.batch_size}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
