"""The lab bench around a federation: demo, simulations, experiments, reports, partitions, model cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedlab.api.run import Run as Run
    from fedlab.api.run import open as open
    from fedlab.api.simulation import Simulation as Simulation
    from fedlab.api.simulation import simulate as simulate
    from fedlab.api.simulation import start as start
else:

    def __getattr__(name: str) -> object:
        """What programs use, imported when it is asked for: the package itself imports nothing."""
        from common import public

        return public(__name__, name, _PUBLIC)

    def __dir__() -> list[str]:
        return sorted(_PUBLIC)


_PUBLIC = {
    "simulate": "fedlab.api.simulation",
    "start": "fedlab.api.simulation",
    "Simulation": "fedlab.api.simulation",
    "open": "fedlab.api.run",
    "Run": "fedlab.api.run",
}
