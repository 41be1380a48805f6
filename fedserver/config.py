"""The settings of one run, validated once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

from common.algorithms import ALGORITHMS, PROX
from common.algorithms.base import Algorithm
from common.errors import ConfigError
from common.server_step.robust import Robustness
from common.wire.codec_choice import Codecs
from fedserver.settings import BELOW_1, COUNT, NOT_NEGATIVE, POSITIVE, Limit, Section, about, at_most, flag
from fedserver.task import Task
from fedserver.tensors.settings import TensorSettings
from fedserver.training_settings import TrainingSettings
from fedserver.worker.analyses.settings import AnalysisSettings

START, RUN, DATA, MODEL, _, PARTICIPATION, WIRE, SECURITY = Section
MAX_CLIENTS = 10_000


@dataclass(frozen=True, kw_only=True)
class RunConfig(AnalysisSettings, Task, TensorSettings, TrainingSettings):
    """Settings of one run, in the paper's symbols where it has one."""

    num_clients: int = START.setting(
        4, "N, the number of clients; round 1 starts when they have joined.", COUNT, at_most(MAX_CLIENTS)
    )
    rounds: int = START.setting(20, "R, the number of rounds; the run ends after the last one.", COUNT)
    algorithm: str = START.setting(
        "fedpvr",
        "How clients are kept from drifting apart; installed packages may have more.",
        choices=ALGORITHMS,
    )
    dataset: str = START.setting(
        "digits",
        "Data set: built in, of an installed package, or module:factory in the current directory.",
        metavar="NAME",
    )
    model: str = START.setting(
        "cnn",
        "Model: built in, of an installed package, or module:factory in the current directory.",
        metavar="NAME",
    )

    seed: int = RUN.setting(
        0,
        "Fixes initialisation, shards and batches.",
        Limit(lambda n: 0 <= n < 2**32, f"must be from 0 to {2**32 - 1}"),
    )
    eval_every: int = RUN.setting(
        1, "Evaluate after every n-th round, and always after the last; 0: only then.", NOT_NEGATIVE
    )
    eval_async: bool = RUN.setting(False, "Let no round wait for evaluations; some are skipped then.")

    data_dir: str = DATA.setting(
        "data", "Where data sets that are not built in are read from and downloaded to.", metavar="DIR"
    )
    image_size: int | None = DATA.setting(
        None, "Bring images to this height and width, to save time.", COUNT, if_unset="as they are"
    )
    alpha: float = DATA.setting(
        0.5, "Dirichlet concentration of the shards; small makes clients differ.", POSITIVE
    )
    partition: str | None = DATA.setting(
        None, "JSON file with ready-made shards; see fedlab partition.", metavar="FILE", if_unset="draw them"
    )
    equal_shards: bool = DATA.setting(
        True, "Cut the shards into one size, as published experiments do; otherwise sizes and K_i differ."
    )
    augment: bool | None = DATA.setting(None, "Random flip and crop.", if_unset="as the data set says")
    validation: float = DATA.setting(
        0.0, "Share of every shard that its client keeps for validation.", BELOW_1
    )

    width: float = MODEL.setting(1.0, "Factor on the channels of a built-in model, to save time.", POSITIVE)

    clients_per_round: int | None = PARTICIPATION.setting(
        None, "S, clients drawn at random for each round.", COUNT, if_unset="all"
    )
    min_clients: int | None = PARTICIPATION.setting(
        None, "Start with this many clients; the others may join later.", COUNT, if_unset="all"
    )
    gather: float | None = PARTICIPATION.setting(
        None,
        "Start once at least --num-clients are here and nobody new has joined for this many seconds; "
        "they make up the run.",
        POSITIVE,
        metavar="SECONDS",
        if_unset="N is --num-clients",
    )
    lease: float | None = PARTICIPATION.setting(
        None,
        "Stop waiting for a client that has been silent for this many seconds, until it returns.",
        POSITIVE,
        metavar="SECONDS",
        if_unset="wait for ever",
    )
    deadline: float | None = PARTICIPATION.setting(
        None,
        "Close a round after this many seconds without those who have not answered.",
        POSITIVE,
        metavar="SECONDS",
        if_unset="never",
    )
    quorum: float = PARTICIPATION.setting(
        0.5,
        "Share of a round's clients whose updates must be in before anybody is left out.",
        Limit(lambda x: 0 < x <= 1, "must be above 0 and at most 1"),
    )

    variates: str = WIRE.setting(
        "explicit",
        "Send control variates, or derive them from the models wherever both sides can.",
        choices=("explicit", "derived"),
    )
    codec: tuple[str, ...] = WIRE.setting(
        (),
        "How updates travel: fp32 (as they are), fp16, bf16, int8 (a scale per 2048 elements), "
        "int8-tensor (one scale) or topk:F (the largest share F). down=CODEC is for x, control=CODEC for c "
        "and c_i; repeatable. Installed packages may have more.",
        metavar="CODEC",
        if_unset="fp32 for all",
    )

    aggregation: str = SECURITY.setting(
        "mean",
        "mean, or median or trimmed:F of each number over all clients, if not all are trusted.",
        metavar="RULE",
    )
    norm_bound: float | None = SECURITY.setting(
        2.0,
        "Updates may be this many times as large as is usual in their round; larger ones count less, and "
        "much larger ones not at all. none: all count alike.",
        metavar="F|none",
        word_for_none="none",
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            about(each).require(each.name, getattr(self, each.name))
        self.check_task(
            self.dataset, partition=self.partition, image_size=self.image_size, **self.needing_data()
        )
        self.check_tensors(None if self.has_task else self.best)
        self.check_analyses(self.validation, self.personal)
        self._check_clients()
        self.check_training()
        self._check_aggregation()
        self._check_algorithm(ALGORITHMS[self.algorithm])
        if self.partition is not None and not Path(self.partition).is_file():
            raise ConfigError(
                f"--partition {self.partition}: no such file; write one with: fedlab partition --out"
            )
        if not self.equal_shards and (self.partition is not None or self.has_task):
            raise ConfigError("--no-equal-shards is for shards that the server draws; leave it out")

    def _check_clients(self) -> None:
        for name in ("clients_per_round", "min_clients"):
            if (getattr(self, name) or 0) > self.num_clients:
                raise ConfigError(
                    f"{flag(name)} must be at most --num-clients, got {getattr(self, name)} of "
                    f"{self.num_clients}"
                )
        if self.gather is not None and self.min_clients is not None:
            raise ConfigError("--gather and --min-clients exclude each other; give one of them")
        if self.warm_variates and self.min_clients is not None:
            raise ConfigError(
                "--warm-variates asks all clients for their gradient at the first x, and --min-clients lets "
                "some come later; give one of them"
            )

    def _check_aggregation(self) -> None:
        if self.robustness.aggregation != "mean" and self.weighting != "uniform":
            raise ConfigError(f"--aggregation {self.aggregation} goes with --weighting uniform only")
        _ = self.codecs  # Raises for names that are none.

    def _check_algorithm(self, chosen: Algorithm) -> None:
        if self.svr and not chosen.takes_patterns:
            takers = ", ".join(name for name, kind in ALGORITHMS.ready.items() if kind.takes_patterns)
            raise ConfigError(f"--svr goes with --algorithm {takers}; {self.algorithm} has its own S_svr")
        for name in PROX:
            if getattr(self, name) is not None and name != chosen.prox_setting:
                raise ConfigError(f"{flag(name)} does not go with --algorithm {self.algorithm}")
        if self.variates == "derived" and not chosen.reduces_variance:
            having = ", ".join(name for name, kind in ALGORITHMS.ready.items() if kind.reduces_variance)
            raise ConfigError(
                f"--variates derived needs a control variate to derive ({having}), "
                f"--algorithm {self.algorithm} has none"
            )
        if self.warm_variates and not chosen.reduces_variance:
            raise ConfigError(
                f"--warm-variates needs a control variate, --algorithm {self.algorithm} has none"
            )
        if chosen.keeps_h and (self.eta_g != 1 or self.weighting != "uniform"):
            raise ConfigError(
                f"--algorithm {self.algorithm} is defined for --eta-g 1 and --weighting uniform only"
            )

    @property
    def prox_weight(self) -> float:
        """Weight of y_i - x in the local gradient; 0 for an algorithm without."""
        chosen = ALGORITHMS[self.algorithm]
        given: float | None = getattr(self, chosen.prox_setting) if chosen.prox_setting else None
        return chosen.prox_default if given is None else float(given)

    @cached_property
    def robustness(self) -> Robustness:
        """Which updates count, and how they are put together."""
        return Robustness(self.aggregation, self.norm_bound)

    @cached_property
    def codecs(self) -> Codecs:
        """The codecs by what they are for."""
        return Codecs.parse(self.codec)

    def as_dict(self) -> dict[str, object]:
        """Plain values for config.json."""
        words = {each.name: about(each).word_for_none for each in fields(self)}
        return {
            name: (words[name] or None) if value is None else value for name, value in asdict(self).items()
        }
