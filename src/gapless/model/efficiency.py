"""`Efficiency`: what operators of a profile reach of the GPU, and what an estimate says of them."""

from __future__ import annotations

import msgspec

from gapless.model.programme import Shape


class Rate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`calls` of an operator, or of a family of them, in the steps: `time` on the GPU in nanoseconds, all
    together.

    `flops` is the arithmetic of products, convolutions and attention (a multiplication and an addition are
    two), `bytes` what must be read and written at least; both of all calls. `roof` is the time that these
    need at the data sheet's peaks, -1 where the GPU is in no table; `estimated` what an estimate without this
    profile says, -1 where the GPU is not one of those that can be emulated. `shapes` and `dtype` are those of
    the tensors that it is given.
    """

    name: str
    shapes: tuple[Shape, ...] = ()
    dtype: str = ""
    calls: int = 0
    time: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    roof: int = -1
    estimated: int = -1

    @property
    def tflops(self) -> float:
        """The arithmetic rate in TFLOP/s."""
        return self.flops / self.time / 1e3 if self.time else 0.0

    @property
    def bandwidth(self) -> float:
        """The memory bandwidth in GB/s."""
        return self.bytes / self.time if self.time else 0.0

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def share(self) -> float:
        """The share of the roof that is reached; above 1 if the L2 cache helps; -1 if unknown."""
        return self.roof / self.time if self.time and self.roof >= 0 else -1.0


class Efficiency(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Operators whose shapes were recorded: `covered` nanoseconds of the `time` of all work in the steps.

    `card` is the GPU whose data sheet it is, "" where it is in no table; `estimated` says that it is one that
    can be emulated. `families` are those of all these
    operators, longest first; `operators` by name and shapes the slow ones, first what takes longest beyond
    its roof. `short` and `products` say how many times as long as estimated elementwise kernels of few
    elements and matrix products take, in the median; -1 where there are too few to tell.
    """

    card: str = ""
    estimated: bool = False
    time: int = 0
    covered: int = 0
    families: tuple[Rate, ...] = ()
    operators: tuple[Rate, ...] = ()
    short: float = -1.0
    products: float = -1.0
