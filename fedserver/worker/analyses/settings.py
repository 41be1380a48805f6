"""The settings that say what is found out about x and the clients' models besides accuracy and loss."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ConfigError
from fedserver.settings import NOT_NEGATIVE, Limit, Section

RUN = Section.RUN
VALIDATION, TEST_HALF = "validation", "test-half"
"""What prediction sets can be calibrated on."""
LEAST_CKA = 4
"""Images: with fewer the unbiased estimate is not defined."""


@dataclass(frozen=True, kw_only=True)
class AnalysisSettings:
    """All of them need data at the server, and leave training as it is."""

    cka: int = RUN.setting(
        0,
        "Compare client models by CKA on this many test images wherever x is evaluated; 512 is usual, 0: do "
        "not. They are taken in minibatches of at most 256.",
        Limit(lambda n: n == 0 or n >= LEAST_CKA, f"must be 0 or at least {LEAST_CKA}"),
    )
    cka_estimator: str = RUN.setting(
        "debiased",
        "The estimate of CKA: the biased one says that wide layers are alike where images are few, and takes "
        "all of them at once.",
        choices=("debiased", "biased"),
    )
    probe: int = RUN.setting(
        0,
        "Wherever x is evaluated, train a new classifier on its features of this many training images, to "
        "see what the classifier of x loses (head gap); 5000 is usual, 0: do not.",
        NOT_NEGATIVE,
    )
    calibration: str | None = RUN.setting(
        None,
        "What prediction sets of the final x are calibrated on: what clients keep aside by --validation, or "
        "half of the test set, which then tests with the other half only.",
        choices=(VALIDATION, TEST_HALF),
        if_unset="validation where there is one",
    )

    def needing_data(self) -> dict[str, object]:
        """Those that a run without data at the server cannot have, by name."""
        return {"cka": self.cka, "probe": self.probe, "calibration": self.calibration}

    def calibrates_on_validation(self, share: float) -> bool:
        """Whether examples that clients keep aside are asked for, if there are any."""
        return share > 0 and self.calibration != TEST_HALF

    def check_analyses(self, validation: float, personal: tuple[str, ...]) -> None:
        """Raises for settings that exclude each other."""
        if self.calibration == VALIDATION and not validation:
            raise ConfigError("--calibration validation needs examples that clients keep: give --validation")
        if self.cka and personal:
            raise ConfigError("--cka compares whole models, and personal tensors never reach the server")
        if self.probe and personal:
            raise ConfigError("--probe evaluates x, which has no features without its personal tensors")
