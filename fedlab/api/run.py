"""A run that has left a directory behind, finished or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import ConfigError
from common.records.run import RunRecord
from fedlab.api.comparison import Comparison, named
from fedlab.api.rounds import Rounds
from fedlab.reports.runs import read_run

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedlab.api.picture import Picture


class Run:
    """Settings, rounds, model and pictures of one run."""

    def __init__(self, path: str | Path, factory: Callable[[int], nn.Module] | None = None) -> None:
        """`factory` builds the model of a run whose model was an object of its caller's."""
        self._found = read_run(Path(path))
        self._factory = factory
        self.rounds = Rounds(self._found.rounds)
        """The closed rounds."""

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._found.path

    @property
    def config(self) -> RunRecord:
        """The settings, what came out of them, and who has which seat."""
        return self._found.config

    @property
    def method(self) -> str:
        """The algorithm, with what differs from its plain form."""
        return self._found.method

    @property
    def accuracy(self) -> float:
        """After the last evaluated round; raises where there is none."""
        return self._found.accuracy()

    @property
    def bytes_per_client_and_round(self) -> dict[str, float]:
        """Both directions together, by purpose."""
        return self._found.bytes_per_client_and_round()

    def plot(self) -> Picture:
        """Accuracy and loss, by round and by megabytes of one client, as a matplotlib figure."""
        from fedlab.api.picture import curves

        return curves({self.method: self.rounds})

    def compare(self, *others: Run) -> Comparison:
        """This run and others as a table, with ratios of traffic to this one; its `plot()` has all curves."""
        return Comparison(named(self, *others))

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors of the final model, or of the last one that a run in progress has written."""
        from safetensors.torch import load_file

        tensors: dict[str, Tensor] = load_file(self.path / "model.safetensors")
        return tensors

    def model(self, factory: Callable[[int], nn.Module] | None = None) -> nn.Module:
        """The final model, ready to use; `factory` builds it where this process cannot know how."""
        factory = factory or self._factory
        model = self._built() if factory is None else factory(self.config.num_classes)
        model.load_state_dict(self.state_dict())
        return model.eval()

    def _built(self) -> nn.Module:
        from common.models.build import build_model
        from common.models.spec import ModelSpec

        if self.config.model.startswith("given:"):
            raise ConfigError(
                f"{self.path}: its model was an object of a program; give what builds it: model(factory)"
            )
        shape, dtype = self._examples()
        width = self.config.others.get("width")
        spec = ModelSpec(
            name=self.config.model,
            num_classes=self.config.num_classes,
            width=width if isinstance(width, float) else 1.0,
            image_shape=shape,
            dtype=dtype,
        )
        return build_model(spec, 0)

    def _examples(self) -> tuple[tuple[int, ...], str]:
        """Shape of an example, and what the model's parameters are."""
        others = self.config.others
        text = others.get("input_shape")
        if isinstance(text, str):
            given = others.get("input_dtype")
            return tuple(map(int, text.split("x"))), "float64" if given == "float64" else "float32"
        from common.data import datasets

        size = others.get("image_size")
        test = datasets.load(
            self.config.dataset, "test", str(others.get("data_dir")), size if isinstance(size, int) else None
        )
        return test.image_shape, test.model_dtype

    def __repr__(self) -> str:
        done = [value for value in self.rounds.column("accuracy") if value is not None]
        accuracy = f", accuracy {done[-1]:.2%}" if done else ""
        return f"Run({str(self.path)!r}: {self.method}, {len(self.rounds)} rounds{accuracy})"


def open(path: str | Path) -> Run:
    """A run directory that `fedserver run`, `fedlab simulate` or `fedlab.simulate` has written."""
    return Run(path)
