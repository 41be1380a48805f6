"""What a run asks of a client, held against what its site allows before anything is loaded or allocated."""

from __future__ import annotations

import math

from common.data.datasets import IMAGE_DTYPES, MAX_CLASSES
from common.errors import RefusedError, WireError
from common.evaluate import BATCH as EVALUATED_AT_ONCE
from common.models.build import count_parameters
from common.models.names import BUILT_IN
from common.server_step.rules import Rules
from common.tensors.layout import DTYPES, Layout, Purpose
from fedclient.rpc.seat import Seat
from fedclient.site import Site

MAX_WIDTH = 64.0
MAX_DIMS = 8
MAX_EXAMPLE_VALUES = 1 << 24
"""A picture of 3x2048x2048 is less."""
BYTES_PER_VALUE = 2
"""Of an example: pictures are bytes, and are copied once."""
MODEL_COPIES = 10
"""x, y_i, c, c_i, gradients, what is sent and so on, in bytes of the model."""


class Demands:
    """Of one run; made before its data are loaded and its model is built."""

    def __init__(self, seat: Seat, site: Site, *, own_data: bool) -> None:
        self._site = site
        self._model = seat.model
        site.require_model(self._model.name)
        if seat.dataset is not None and not own_data:
            site.require_dataset(seat.dataset)
        _require_sense(seat)
        for kind, name in seat.functions:
            site.require_code(kind, name)
        self._itemsize = DTYPES[self._model.dtype].storage.itemsize
        self._parameters = 0
        if self._model.name in BUILT_IN:
            self._parameters = count_parameters(self._model)
            site.require_parameters(self._parameters)
        self._data_bytes = 0

    def require_data(self, examples: int) -> None:
        """Raises if that many examples, at the size that the run wants them, take too much memory."""
        shape = self._model.image_shape
        self._data_bytes = examples * math.prod(shape) * BYTES_PER_VALUE
        what = f"{examples} examples of shape {'x'.join(map(str, shape))}"
        self._site.require_memory(what, self._data_bytes)

    def require_built(self, layout: Layout) -> None:
        """Looks again at a model that was built: a plug-in's parameters cannot be counted before."""
        specs = (layout.specs[k] for k in layout.indices(Purpose.MODEL))
        self._parameters = sum(math.prod(spec.shape) for spec in specs)
        self._site.require_parameters(self._parameters)

    def require_round(self, rules: Rules, steps: int, batch: int) -> None:
        """Raises if a round of that many steps on batches of that many examples is too much."""
        self._site.require_steps(steps)
        shape = self._model.image_shape
        name = self._model.name
        made = BUILT_IN[name].features * self._model.width if name in BUILT_IN else 0.0
        of_example = math.prod(shape[1:]) * made + math.prod(shape)
        # Every layer's values and their gradients; without gradients only few layers' at a time.
        values = (
            max(2 * batch, EVALUATED_AT_ONCE / 3 if rules.validation or rules.evaluate else 0.0) * of_example
        )
        total = (MODEL_COPIES * self._parameters + int(values)) * self._itemsize + self._data_bytes
        self._site.require_memory(f"a round with batches of {batch}", total)


def _require_sense(seat: Seat) -> None:
    """Raises for numbers that no run can have, and for some that none should."""
    spec, shape = seat.model, seat.model.image_shape
    if spec.dtype not in IMAGE_DTYPES or not DTYPES[spec.dtype].trains:
        raise WireError.broken_contract(f"a model is float32 or float64, got {spec.dtype[:16]!r}")
    if not 1 <= spec.num_classes <= MAX_CLASSES or len(seat.class_names) not in (0, spec.num_classes):
        raise RefusedError(
            f"expected up to {MAX_CLASSES} classes and as many names, "
            f"got {spec.num_classes} and {len(seat.class_names)}"
        )
    if not 0 < spec.width <= MAX_WIDTH:
        raise RefusedError(f"expected a width up to {MAX_WIDTH:g}, got {spec.width}")
    if not 1 <= len(shape) <= MAX_DIMS or not 1 <= math.prod(shape) <= MAX_EXAMPLE_VALUES:
        raise RefusedError(f"expected examples of up to {MAX_EXAMPLE_VALUES} values, got {shape[:MAX_DIMS]}")
    for name, values in (("mean", seat.mean), ("std", seat.std)):
        if len(values) not in (1, shape[0]):
            raise WireError.broken_contract(f"{name} has a number per channel, got {len(values)}")
        if not all(map(math.isfinite, values)) or (name == "std" and min(values) <= 0):
            raise WireError.broken_contract(f"{name} has finite numbers, std positive ones")
