"""What a site lets a server ask of its client: which code runs, and how much of the machine it takes.

These limits hold always, and come from flags; what may leave the site is for `fedclient.policy`.
"""

from __future__ import annotations

from dataclasses import dataclass

from common import plugin
from common.data.names import DATASETS
from common.errors import RefusedError, printable
from common.installed.allowed import require_allowable
from common.installed.entry_points import is_entry_name
from common.models import names

BYTES_PER_PARAMETER = 64
"""Memory that goes with a parameter a site allows: its copies in training, batches and data."""
MODULES = "modules"
"""The rule by which a server may name code; site.toml has it too."""
MOST_SHOWN = 80
"""Characters of a server's words in an error."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """The limits that a client's owner sets."""

    model: str | None = None
    """The model that is expected, built in or module:factory; None: any that is built in."""
    plugins: frozenset[str] = frozenset()
    """What may be loaded because a server names it: module:factory, or a name of an installed package."""
    own_model: bool = False
    """Whether the client's program has given the model itself: a server's name for it then loads nothing."""
    max_parameters: int = 100_000_000
    max_steps: int = 100_000
    """Of a round."""

    def __post_init__(self) -> None:
        for name in self.plugins:
            require_allowable(name)
        if self.model is not None and self.model not in names.BUILT_IN:
            names.require_known(self.model)
            require_allowable(self.model)

    @property
    def max_bytes(self) -> int:
        """What model, batches and data of a run may take together."""
        return self.max_parameters * BYTES_PER_PARAMETER

    def require_model(self, name: str) -> None:
        """Raises unless a server may have this client build the model of this name."""
        if self.own_model:
            return
        if self.model is None:
            self.require_code("model", name, name in names.BUILT_IN)
        elif name != self.model:
            shown = printable(name, MOST_SHOWN)
            raise RefusedError(
                f"the run trains model {shown!r}, this client takes {self.model} only; change its --model",
                "model",
            )

    def require_dataset(self, name: str) -> None:
        """Raises unless a server may have this client load the data set of this name."""
        self.require_code("data set", name, name in DATASETS)

    def require_code(self, kind: str, name: str, built_in: bool = False) -> None:
        """Raises unless a server may have this client load what it names `module:function`, of any kind."""
        if built_in or name in self.plugins:
            return
        shown = printable(name, MOST_SHOWN)
        if shown != name or not plugin.is_well_formed(name):
            hint = f"; if a package has it, --allow-plugin {name} allows it" if is_entry_name(name) else ""
            raise RefusedError(
                f"the server names {kind} {shown!r}, which is not built in here{hint}", MODULES
            )
        raise RefusedError(
            f"the server names {kind} {name}, code on this client's machine that its owner has not allowed; "
            f"to allow it, start the client with --allow-plugin {name}",
            MODULES,
        )

    def require_parameters(self, count: int) -> None:
        """Raises for a model that is too large."""
        if count > self.max_parameters:
            raise RefusedError(
                f"the model has {count} parameters, this client takes {self.max_parameters}; "
                f"to allow it, start the client with --max-parameters {count}",
                "max_parameters",
            )

    def require_steps(self, steps: int) -> None:
        """Raises for a round that is too long."""
        if steps > self.max_steps:
            raise RefusedError(
                f"a round has {steps} local steps, this client takes {self.max_steps}; "
                f"to allow it, start the client with --max-steps {steps}",
                "max_steps",
            )

    def require_memory(self, what: str, num_bytes: int) -> None:
        """Raises for what would take too much."""
        if num_bytes > self.max_bytes:
            least = -(-num_bytes // BYTES_PER_PARAMETER)
            raise RefusedError(
                f"{what} would take about {num_bytes >> 20} MB, this client gives {self.max_bytes >> 20}; "
                f"to allow it, start the client with --max-parameters {least}",
                "max_parameters",
            )
