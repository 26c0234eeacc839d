"""Random number generators of the emulated device.

Kernels run on the CPU and draw from CPU generators. A device's default generator therefore *is* the CPU's:
seeding it, or restoring its state, makes what the device draws next repeat, and moves the CPU's draws with
it, which CUDA would not. ``torch.Generator(device="cuda")`` is a generator of its own, usable by CPU kernels.
"""

from __future__ import annotations

import struct
from typing import Any

import torch

from gapless.emulate.cuda_api.runtime import Runtime, refusal

_Generator: Any = torch.Generator
_Metaclass: Any = type(torch.Generator)

_CUDA_STATE_BYTES = (8, 16)
"""Sizes of the states CUDA generators save: the seed, and since torch 1.5 the offset with it."""


class _Front(_Metaclass):
    """Every generator is an instance of the class that stands for them all."""

    def __instancecheck__(cls, instance: object) -> bool:  # noqa: N805 - of a metaclass
        return isinstance(instance, _Generator)


class DeviceGenerator(_Generator):
    """A generator for tensors on an emulated device, with its own state."""

    def __new__(cls, index: int) -> Any:
        return super().__new__(cls)

    def __init__(self, index: int) -> None:
        self._index = index

    @property
    def device(self) -> torch.device:
        """The device it is for."""
        return torch.device("cuda", self._index)

    @property
    def for_kernels(self) -> Any:
        """The generator that CPU kernels must be given in its place."""
        return self

    def set_state(self, new_state: torch.Tensor) -> DeviceGenerator:
        """Restore a state saved here, or start from the seed of one saved on a real CUDA device."""
        if new_state.numel() in _CUDA_STATE_BYTES:
            self.manual_seed(_seed_of(new_state))
        else:
            super().set_state(new_state)
        return self

    def get_offset(self) -> int:
        """0: CPU generators do not count."""
        return 0

    def set_offset(self, offset: int) -> None:
        """Accept the only offset there is.

        Raises:
            NotEmulated: `offset` is not 0.
        """
        if offset:
            refusal("The offset of a CUDA generator", "Save and restore its whole state instead.")()

    def clone_state(self) -> DeviceGenerator:
        """A new generator in the same state."""
        copy = DeviceGenerator(self._index)
        copy.set_state(self.get_state())
        return copy

    graphsafe_get_state = graphsafe_set_state = refusal(
        "The graph-safe state of a generator", "It belongs to CUDA graphs, which are not captured here."
    )

    def __reduce__(self) -> Any:
        return _rebuild, (self._index, self.get_state())


class DefaultGenerator(DeviceGenerator):
    """A device's default generator: the CPU's, under another name."""

    @property
    def for_kernels(self) -> Any:
        return torch.default_generator

    def get_state(self) -> torch.Tensor:
        return torch.default_generator.get_state()

    def set_state(self, new_state: torch.Tensor) -> DeviceGenerator:
        if new_state.numel() in _CUDA_STATE_BYTES:
            self.manual_seed(_seed_of(new_state))
        else:
            torch.default_generator.set_state(new_state)
        return self

    def manual_seed(self, seed: int) -> DeviceGenerator:
        torch.default_generator.manual_seed(seed)
        return self

    def seed(self) -> int:
        return int(torch.default_generator.seed())

    def initial_seed(self) -> int:
        return int(torch.default_generator.initial_seed())


def kernel_generator(generator: Any) -> Any:
    """What to pass to a CPU kernel where the script passed `generator` (which may be None)."""
    return generator.for_kernels if isinstance(generator, DeviceGenerator) else generator


def generic_class(runtime: Runtime) -> Any:
    """``torch.Generator`` that makes an emulated generator where a CUDA device is named."""

    class Generator(_Generator, metaclass=_Front):
        def __new__(cls, device: Any = "cpu") -> Any:
            place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
            if place.type != "cuda":
                return _Generator(device=place)
            index = runtime.current() if place.index is None else place.index
            if index >= runtime.device_count():
                raise RuntimeError("The device_index is invalid.")
            return DeviceGenerator(index)

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    return Generator


def _rebuild(index: int, state: torch.Tensor) -> DeviceGenerator:
    generator = DeviceGenerator(index)
    generator.set_state(state)
    return generator


def _seed_of(state: torch.Tensor) -> int:
    seed: int = struct.unpack_from("<q", bytes(state.tolist()))[0]
    return seed
