"""Random number generators of the emulated device.

Kernels run on the CPU and draw from CPU generators. A device's default generator therefore *is* the CPU's:
seeding it, or restoring its state, makes what the device draws next repeat, and moves the CPU's draws with
it, which CUDA would not. ``torch.Generator(device="cuda")`` is a generator of its own, usable by CPU kernels.

Their states are CUDA's, 16 bytes of seed and offset (`philox`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from gapless.emulation.cuda_api.runtime import Runtime
from gapless.emulation.kernels import philox

_Generator: Any = torch.Generator
_SET_STATE = "Please ensure to utilize the CUDAGeneratorImpl::set_state_index method during capturing."
_Metaclass: Any = type(torch.Generator)


class _Front(_Metaclass):
    """Every generator is an instance of the class that stands for them all."""

    def __instancecheck__(cls, instance: object) -> bool:  # noqa: N805 - of a metaclass
        return isinstance(instance, _Generator)


class DeviceGenerator(_Generator):
    """A generator for tensors on an emulated device, with its own state."""

    graphs: ClassVar[Any] = None
    seeded = False
    """Whether somebody wants the same numbers in each run."""

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

    def get_state(self) -> torch.Tensor:
        """Seed and offset, 16 bytes; in a capture, where older versions of torch refuse it, too."""
        pair = philox.token(self.drawn_from)
        if self.graphs is not None:
            self.graphs.read_generator(self, pair)
        return philox.pack(*pair)

    def set_state(self, new_state: torch.Tensor) -> DeviceGenerator:
        """Restore a state saved here, or start from one that CUDA has saved.

        Raises:
            RuntimeError: it is not of CUDA's size (the state of a CPU generator, for one), or it has another
                seed and a graph is being captured.
        """
        pair = philox.unpack(new_state)
        if self.graphs is None or not self.graphs.restore_generator(self, pair):
            self._not_captured(_SET_STATE, "torch.cuda.set_rng_state")
        philox.restore(self.drawn_from, *pair)
        self.seeded = True
        return self

    def get_offset(self) -> int:
        """How far the generator has come from its seed, in numbers that only grow."""
        self._not_captured("Cannot call CUDAGeneratorImpl::get_offset", "Generator.get_offset")
        return philox.token(self.drawn_from)[1]

    def set_offset(self, offset: int) -> None:
        """Go to that offset from the seed."""
        self._not_captured("Cannot call CUDAGeneratorImpl::set_offset", "Generator.set_offset")
        philox.restore(self.drawn_from, philox.token(self.drawn_from)[0], offset)

    @property
    def drawn_from(self) -> Any:
        """The CPU generator, of torch's own class, whose state this one's is."""
        return super()

    def initial_seed(self) -> int:
        """The seed it was given."""
        return philox.token(self.drawn_from)[0]

    def manual_seed(self, seed: int) -> DeviceGenerator:
        """Begin at `seed`."""
        self._not_captured("Cannot call CUDAGeneratorImpl::set_current_seed", "torch.cuda.manual_seed")
        self.drawn_from.manual_seed(seed)
        self.seeded = True
        return self

    def seed(self) -> int:
        """Begin anywhere, and tell where."""
        self._not_captured("Cannot call CUDAGeneratorImpl::seed", "torch.cuda.seed")
        return int(self.drawn_from.seed())

    def _not_captured(self, attempt: str, what: str) -> None:
        if self.graphs is not None:
            self.graphs.refuse_in_capture(attempt, what)

    def clone_state(self) -> DeviceGenerator:
        """A new generator in the same state."""
        copy = DeviceGenerator(self._index)
        copy.drawn_from.set_state(self.drawn_from.get_state())
        return copy

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, state: DeviceGenerator) -> DeviceGenerator:
        """Take over the state of another generator; unlike CUDA's, the two go on separately."""
        self.drawn_from.set_state(state.drawn_from.get_state())
        return self

    def __reduce__(self) -> Any:
        return _rebuild, (self._index, self.drawn_from.get_state())


class DefaultGenerator(DeviceGenerator):
    """A device's default generator: the CPU's, under another name."""

    @property
    def for_kernels(self) -> Any:
        return torch.default_generator

    @property
    def drawn_from(self) -> Any:
        return torch.default_generator


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
