"""A device as the rest of the program sees it: where tensors are put, and what else differs there.

No other module asks which device it is. A tensor that is there already is put without a copy, so on the
processor nothing is copied, and tensors stay views of the flat buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from common.devices.names import BF16, CPU, OFF
from common.errors import ConfigError

_SPARED = 2
"""Data stay on a device if that leaves free as much again: models, gradients and other clients come too."""


class Place:
    """One device, and in which precision a model is trained there."""

    def __init__(self, device: str = CPU, autocast: str = OFF) -> None:
        """Names as `common.devices.names` has them, of a device that is there."""
        self.device = torch.device(device)
        self.autocast = autocast

    def __repr__(self) -> str:
        return f"Place({str(self.device)!r}, {self.autocast!r})"

    @property
    def is_plain(self) -> bool:
        """Whether results are those of the processor, to the bit."""
        return self.device.type == CPU and self.autocast == OFF

    @property
    def shares_memory(self) -> bool:
        """Whether a tensor of a flat buffer is put without a copy: training it writes the buffer."""
        return self.device.type == CPU

    @property
    def answers_at_once(self) -> bool:
        """Whether reading a number is free; elsewhere it waits until all that was asked for is computed."""
        return self.device.type == CPU

    @property
    def widest(self) -> torch.dtype:
        """The most precise type to sum up in."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    def put(self, tensor: Tensor) -> Tensor:
        """The same tensor if it is there already, else a copy that is."""
        if tensor.dtype == torch.float64 and self.widest != torch.float64:
            raise ConfigError(
                f"--device {self.device} has no float64, which this run computes in; use --device cpu"
            )
        # From memory that is not pinned this returns once the bytes are taken, and waits for no computation.
        return tensor.to(self.device, non_blocking=self.device.type == "cuda")

    def put_all(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same by name."""
        return {name: self.put(tensor) for name, tensor in tensors.items()}

    def fetch(self, tensor: Tensor) -> Tensor:
        """The tensor for the processor; waits until it is computed."""
        return tensor.cpu()

    def settle(self, model: nn.Module) -> None:
        """Puts what a model computes with besides its state dict, which is bound in every round.

        That is buffers with persistent=False, such as masks, and tensors that are plain attributes.
        """
        bound = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
        for module in model.modules():
            for buffer in module.buffers(recurse=False):
                if id(buffer) not in bound:
                    buffer.data = self.put(buffer.data)
            for name, value in list(vars(module).items()):
                if isinstance(value, Tensor):
                    setattr(module, name, self.put(value))

    def holds(self, num_bytes: int) -> bool:
        """Whether so much data may lie there for good."""
        if self.device.type == "cuda":
            return num_bytes * _SPARED <= torch.cuda.mem_get_info(self.device)[0]
        if self.device.type == "mps":
            free = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
            return num_bytes * _SPARED <= free
        return True

    def images_in(self, wanted: torch.memory_format) -> torch.memory_format:
        """The order in memory that images get there, where a model wants this one.

        On an Apple GPU gradients of BatchNorm fail in channels_last with most releases of torch.
        """
        return torch.contiguous_format if self.device.type == "mps" else wanted

    def lower_precision(self) -> AbstractContextManager[object]:
        """Inside, a model computes as `autocast` says; its parameters and gradients are as ever."""
        if self.autocast == OFF:
            return nullcontext()
        return torch.autocast(self.device.type, {BF16: torch.bfloat16}[self.autocast])

    def seed(self, number: int) -> None:
        """Seeds the generators that dropout draws from."""
        if self.device.type == CPU:
            # torch.manual_seed keeps a note of every seed for devices that are not in use.
            torch.default_generator.manual_seed(number)
        else:
            torch.manual_seed(number)

    def random_states(self) -> dict[str, Tensor]:
        """Of these generators, by name, for the processor."""
        states = {CPU: torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        elif self.device.type == "mps":
            states["mps"] = torch.mps.get_rng_state()
        return states

    def restore_random(self, states: Mapping[str, Tensor]) -> None:
        """Makes generators go on from here."""
        torch.set_rng_state(states[CPU])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self.device)
        if "mps" in states:
            torch.mps.set_rng_state(states["mps"])


PROCESSOR = Place()
"""Where everything is computed unless somebody says otherwise."""


def doubled(tensor: Tensor) -> Tensor:
    """In float64, where it is; on the processor if its device has none."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
