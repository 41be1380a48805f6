"""The tensors of a model that are not in x: personal ones, which a client trains, and frozen ones."""

from __future__ import annotations

from torch import Tensor, nn

from common.tensors.classes import PERSONAL, TensorClass, TensorClasses
from common.tensors.layout import NOTHING, Flat, Layout
from common.tensors.torch_views import flatten, tensor_views


class OwnTensors:
    """What a client has of a model besides what the server sends in every round."""

    def __init__(self, model: nn.Module, classes: TensorClasses) -> None:
        """`model` is as the seed made it: that is what personal tensors start from."""
        self.personal = classes.personal
        """As they lie at the end of a client's state."""
        self.frozen = classes.frozen
        whole = flatten(model, classes.whole) if self.personal.specs else classes.whole.allocate()[:0]
        self.first = classes.picked(whole, self.personal) if self.personal.specs else whole
        """First values of personal tensors."""
        self._frozen: dict[str, Tensor] = {}
        frozen = set(classes.names(TensorClass.FROZEN))
        self._still: list[nn.Module] = []
        if not frozen:
            return
        for name, parameter in model.named_parameters():
            if name in frozen:
                parameter.requires_grad_(False)
        for prefix, module in model.named_modules():
            buffers = (f"{prefix}.{name}".lstrip(".") for name, _ in module.named_buffers(recurse=False))
            if not frozen.isdisjoint(buffers):
                self._still.append(module)

    @property
    def wanted(self) -> Layout:
        """Frozen tensors that are not here yet."""
        return NOTHING if self._frozen else self.frozen

    def take_frozen(self, flat: Flat) -> None:
        """Here they are."""
        self._frozen = tensor_views(self.frozen, flat)

    def fresh(self, state: Layout) -> Flat:
        """The state of a client that has none: zero, and personal tensors as the seed makes them."""
        flat = state.allocate()
        flat[state.num_bytes - self.personal.num_bytes :] = self.first
        return flat

    def trained(self, state: Flat) -> dict[str, Tensor]:
        """The personal tensors in a client's state, as views by their names in the model."""
        if not self.personal.specs:
            return {}
        views = tensor_views(self.personal, state[len(state) - self.personal.num_bytes :])
        return {name.removeprefix(PERSONAL): view for name, view in views.items()}

    def besides_x(self, model: nn.Module, state: Flat) -> dict[str, Tensor]:
        """All that a model has besides x, for a client with this state."""
        return self.trained(state) | self._unchanged(model)

    def _unchanged(self, model: nn.Module) -> dict[str, Tensor]:
        """The frozen tensors; buffers are copies, because a module might write into its own."""
        if not self._frozen:
            return {}
        buffers = {name for name, _ in model.named_buffers()}
        return {name: view.clone() if name in buffers else view for name, view in self._frozen.items()}

    def hold_still(self) -> None:
        """Lets modules with frozen buffers work as in evaluation: norms use their statistics, as they are."""
        for module in self._still:
            module.training = False
