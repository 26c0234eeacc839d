"""Random number generators of the emulated device.

Kernels run on the CPU and draw from CPU generators. So a device's default generator *is* the CPU's: seeding
it or restoring its state repeats the device's draws, and also changes the CPU's draws, unlike CUDA.
``torch.Generator(device="cuda")`` is a separate generator, usable by CPU kernels.

Their states have CUDA's format, 16 bytes of seed and offset (`philox`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from gapless.emulation.cuda_api.runtime import Runtime
from gapless.emulation.kernels import philox
from gapless.torch_internals import VERSION

_Generator: Any = torch.Generator
_SET_STATE = "Please ensure to utilize the CUDAGeneratorImpl::set_state_index method during capturing."
_Metaclass: Any = type(torch.Generator)


class _GeneratorFront(_Metaclass):
    """Makes every generator an instance of the replaced ``torch.Generator``."""

    def __instancecheck__(cls, instance: object) -> bool:  # noqa: N805 - of a metaclass
        return isinstance(instance, _Generator)


class DeviceGenerator(_Generator):
    """A generator for tensors on an emulated device, with its own state."""

    graphs: ClassVar[Any] = None
    seeded = False
    """Whether the script seeded it, so that each run draws the same numbers."""

    def __new__(cls, index: int) -> Any:
        return super().__new__(cls)

    def __init__(self, index: int) -> None:
        self._index = index

    @property
    def device(self) -> torch.device:
        """The emulated device."""
        return torch.device("cuda", self._index)

    @property
    def for_kernels(self) -> Any:
        """The CPU generator to pass to kernels instead."""
        return self

    def get_state(self) -> torch.Tensor:
        """Return seed and offset, 16 bytes; also in a capture, where older torch versions refuse."""
        pair = philox.token(self.drawn_from)
        if self.graphs is not None:
            self.graphs.read_generator(self, pair)
        return philox.pack(*pair)

    def set_state(self, new_state: torch.Tensor) -> DeviceGenerator:
        """Restore a state saved here, or start from one saved by CUDA.

        Raises:
            RuntimeError: wrong size (such as the state of a CPU generator), or another seed during capture.
        """
        pair = philox.unpack(new_state)
        if self.graphs is not None and not self.graphs.restore_generator(self, pair):
            if VERSION < (2, 10):
                self.graphs.refuse_in_capture(_SET_STATE, "torch.cuda.set_rng_state")
            else:
                self.graphs.refuse_seed(pair[0] != self.initial_seed(), "torch.cuda.set_rng_state")
        philox.restore(self.drawn_from, *pair)
        self.seeded = True
        return self

    def get_offset(self) -> int:
        """The offset from the seed; it only grows."""
        self._refuse_in_capture("Cannot call CUDAGeneratorImpl::get_offset", "Generator.get_offset")
        return philox.token(self.drawn_from)[1]

    def set_offset(self, offset: int) -> None:
        """Move to `offset` from the seed."""
        self._refuse_in_capture("Cannot call CUDAGeneratorImpl::set_offset", "Generator.set_offset")
        philox.restore(self.drawn_from, philox.token(self.drawn_from)[0], offset)

    @property
    def drawn_from(self) -> Any:
        """The CPU generator (torch's own class) that holds the state."""
        return super()

    def initial_seed(self) -> int:
        """The seed it was given."""
        return philox.token(self.drawn_from)[0]

    def manual_seed(self, seed: int) -> DeviceGenerator:
        """Restart from `seed`."""
        if self.graphs is not None:
            self.graphs.refuse_seed(seed != self.initial_seed(), "torch.cuda.manual_seed")
            if self.graphs.is_capturing_here():
                return self  # the seed it has: torch leaves the offset as it is
        self.drawn_from.manual_seed(seed)
        self.seeded = True
        return self

    def seed(self) -> int:
        """Restart from a random seed and return it."""
        self._refuse_in_capture("Cannot call CUDAGeneratorImpl::seed", "torch.cuda.seed")
        return int(self.drawn_from.seed())

    def _refuse_in_capture(self, attempt: str, call: str) -> None:
        if self.graphs is not None:
            self.graphs.refuse_in_capture(attempt, call)

    def clone_state(self) -> DeviceGenerator:
        """Return a new generator in the same state."""
        copy = DeviceGenerator(self._index)
        copy.drawn_from.set_state(self.drawn_from.get_state())
        return copy

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, state: DeviceGenerator) -> DeviceGenerator:
        """Copy the state of another generator; unlike CUDA's, the two do not share it."""
        self.drawn_from.set_state(state.drawn_from.get_state())
        return self

    def __reduce__(self) -> Any:
        return _rebuild, (self._index, self.drawn_from.get_state())


class DefaultGenerator(DeviceGenerator):
    """A device's default generator, backed by the CPU's."""

    @property
    def for_kernels(self) -> Any:
        return torch.default_generator

    @property
    def drawn_from(self) -> Any:
        return torch.default_generator


def kernel_generator(generator: Any) -> Any:
    """The generator to pass to a CPU kernel for the script's `generator` (may be None)."""
    return generator.for_kernels if isinstance(generator, DeviceGenerator) else generator


def generic_class(runtime: Runtime) -> Any:
    """Return a ``torch.Generator`` class that creates emulated generators for CUDA devices."""

    class Generator(_Generator, metaclass=_GeneratorFront):
        def __new__(cls, device: Any = "cpu") -> Any:
            place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
            if place.type != "cuda":
                return _Generator(device=place)
            runtime.device.graphs.refuse_in_capture(
                "Cannot construct a new CUDAGeneratorImpl", "torch.Generator"
            )
            index = runtime.current() if place.index is None else place.index
            if index >= runtime.device_count():
                raise RuntimeError("The device_index is invalid.")
            return DeviceGenerator(index)

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    return Generator


def _rebuild(index: int, state: torch.Tensor) -> DeviceGenerator:
    generator = DeviceGenerator(index)
    generator.drawn_from.set_state(state)
    return generator
