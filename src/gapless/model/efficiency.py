"""`Efficiency`: what share of the GPU's peak a profile's operators reach, and what an estimate says of
them."""

from __future__ import annotations

import msgspec

from gapless.model.programme import Shape


class Rate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The `calls` of an operator, or of a family, in the steps: `time` on the GPU in nanoseconds, in all.

    - `flops`: of products, convolutions and attention (a multiplication and an addition are two); `bytes`:
      the least to read and write; of all calls.
    - `roof`: the time of these at the data sheet's peaks (-1: GPU not in the tables); `estimated`: the
      estimate without this profile (-1: GPU cannot be emulated).
    - `shapes`, `dtype`: of its input tensors.
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
    """Operators with recorded shapes: `covered` nanoseconds of the `time` of all work in the steps.

    `card` is the GPU in the tables ("": none); `estimated`: it can be emulated. `families` cover all these
    operators, longest first; `operators` are the slow ones by name and shapes, those with the most time
    beyond their roof first. `short` and `products` are the median ratios of measured to estimated time of
    elementwise kernels with few elements and of matrix products; -1 if there are too few.
    """

    card: str = ""
    estimated: bool = False
    time: int = 0
    covered: int = 0
    families: tuple[Rate, ...] = ()
    operators: tuple[Rate, ...] = ()
    short: float = -1.0
    products: float = -1.0
