"""A device for tests on machines without one: the processor, but tensors have to be put there to be there.

`Elsewhere` is a place that copies whatever is put, as a GPU does, and knows what is there. While `watched`,
every operation of torch in this thread is held against the rule of a GPU: no operation has tensors of both
sides, numbers of one element apart, and nothing reads a tensor that was not fetched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from common.devices.place import Place

ATEN = torch.ops.aten
CROSSING = {ATEN.copy_.default}
"""What may have tensors of both sides."""
WORK = {ATEN.convolution.default, ATEN.addmm.default, ATEN.native_batch_norm.default, ATEN.mm.default}
"""What a model spends its time with."""


class StrayTensorError(Exception):
    """On a GPU this would have failed."""


class Elsewhere(Place):
    """Not the processor, though it computes there."""

    shares_memory = answers_at_once = False

    def __init__(self, roomy: bool = True) -> None:
        """`roomy`: data may stay there."""
        super().__init__()
        self._roomy = roomy
        self._there: dict[int, Tensor] = {}
        """By the address of their memory; they are kept, so that no other tensor gets it."""
        self.reads = 0
        """How often somebody waited for a number."""
        self.work: Counter[bool] = Counter()
        """Operations that take time, by whether they were done there."""

    def has(self, tensor: Tensor) -> bool:
        """Whether it is there."""
        return not tensor.numel() or tensor.untyped_storage().data_ptr() in self._there

    def keep(self, tensors: Iterable[object]) -> None:
        """What has been computed there is there."""
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.numel():
                self._there[tensor.untyped_storage().data_ptr()] = tensor.detach()

    def put(self, tensor: Tensor) -> Tensor:
        """A copy, unless it is there."""
        with _disable_current_modes():
            if not self.has(tensor):
                tensor = tensor.detach().clone()
                self.keep([tensor])
        return tensor

    def fetch(self, tensor: Tensor) -> Tensor:
        """A copy that is not there."""
        with _disable_current_modes():
            return tensor.detach().clone()

    def holds(self, num_bytes: int) -> bool:
        """As it was made."""
        return self._roomy


class Forgetful(Elsewhere):
    """Leaves behind what is not in the state dict."""

    def settle(self, model: nn.Module) -> None:
        """Does not."""


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, place: Elsewhere) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place = place

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        place, given = self._place, [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        there = any(place.has(tensor) for tensor in given if tensor.numel())
        if func in WORK:
            place.work[there] += 1
        if func is ATEN._local_scalar_dense.default:
            place.reads += there
        if there and func not in CROSSING:
            stray = [tuple(tensor.shape) for tensor in given if tensor.ndim and not place.has(tensor)]
            if stray:
                raise StrayTensorError(f"{func} has a tensor {stray[0]} that was not put there")
        result = func(*args, **(kwargs or {}))
        if there and func not in CROSSING:
            with _disable_current_modes():
                place.keep(tree_leaves(result))
        return result


class _Readers(TorchFunctionMode):
    def __init__(self, place: Elsewhere) -> None:
        super().__init__()
        self._place = place

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in (Tensor.numpy, Tensor.__array__) and args[0].numel() and self._place.has(args[0]):
            raise StrayTensorError("a tensor was read that was not fetched")
        return func(*args, **(kwargs or {}))


@contextmanager
def watched(place: Elsewhere) -> Iterator[None]:
    """Holds everything inside against the rules."""
    with _Operations(place), _Readers(place):
        yield
