"""The algorithms that differ only in S_svr: FedPVR (the classifier) and SCAFFOLD (everything)."""

from __future__ import annotations

from collections.abc import Sequence

from common.algorithms.base import Algorithm
from common.errors import ConfigError


class FedPVR(Algorithm):
    """Variance reduction on the classifier alone (Li et al., CVPR 2023)."""

    reduces_variance = True
    takes_patterns = True

    def svr(self, parameters: Sequence[str], classifier: Sequence[str]) -> Sequence[str]:
        """The classifier's names."""
        if not classifier:
            raise ConfigError(
                "the model does not tell its classifier; give --svr, or set classifier_modules in it"
            )
        return classifier


class Scaffold(Algorithm):
    """Variance reduction on every parameter (Karimireddy et al., ICML 2020)."""

    reduces_variance = True

    def svr(self, parameters: Sequence[str], classifier: Sequence[str]) -> Sequence[str]:
        """All names."""
        return parameters
