"""How long work takes on a GPU that is not there, and how long the host needs to ask for it.

On the device: a kernel takes a start-up time and then the longer of what its memory traffic and its
arithmetic take, at a share of the data sheet's peaks that depends on the family of the operator. These shares
are fitted to real profiles with recorded shapes by ``benchmarks/estimate.py``, whose sheet tells how far off
they are. Matrix work is cut into tiles; a last wave that fills few multiprocessors takes as long as a full
one.

On the host: see `Host`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from gapless.analyze.estimate.families import ATTENTION, CONVOLUTION, MATMUL, TRITON, UNKNOWN
from gapless.analyze.estimate.work import Work
from gapless.model.programme import Entry, Gpu


class Share(NamedTuple):
    """What a family reaches: nanoseconds of start-up, shares of the peak of memory and of arithmetic."""

    start: float
    memory: float
    arithmetic: float = 1.0


SHARES: dict[str, Share] = {
    MATMUL: Share(6_000, 0.44, 0.94),
    CONVOLUTION: Share(6_000, 0.19, 0.73),
    ATTENTION: Share(6_000, 0.31, 0.5),
    "layer norm": Share(3_000, 0.39),
    "batch norm": Share(6_000, 0.73),
    "softmax": Share(2_000, 0.5),
    "reduction": Share(4_000, 0.44),
    "scan": Share(6_000, 0.1),
    "gather": Share(3_000, 0.24),
    "copy": Share(3_000, 0.5),
    "pointwise": Share(1_500, 0.83),
    # The profiles hold none, or too few, of these: taken like what is nearest to them.
    "sort": Share(6_000, 0.1),
    "scatter": Share(3_000, 0.24),
    "random": Share(3_000, 0.5),
    "foreach": Share(3_000, 0.83),
    TRITON: Share(3_000, 0.5, 0.5),
    UNKNOWN: Share(3_000, 0.4),
}
"""Fitted by ``python benchmarks/estimate.py FOLDER --fit``."""

RAGGED = 2.0
"""Rows that do not begin at multiples of 16 bytes take so many times as long to read and write."""

FURTHER = 0.7
"""Start-up of the second and later kernels of a call, in parts of the first's."""


def device_time(work: Work, gpu: Gpu, shares: Mapping[str, Share] = SHARES) -> float:
    """Nanoseconds that this work takes on `gpu`, all its kernels together."""
    share = shares[work.family]
    start = share.start * (1 + FURTHER * (work.kernels - 1))
    memory = work.moved / (gpu.bandwidth * share.memory) if gpu.bandwidth else 0.0
    if work.ragged:
        memory *= RAGGED
    if not work.flops:
        return start + memory
    arithmetic = work.flops / (peak(gpu, work.unit) * 1e3 * share.arithmetic)
    return start + max(memory, arithmetic / _filled(work.tiles, gpu.multiprocessors))


def spread(work: Work, gpu: Gpu) -> float:
    """How uncertain `device_time` is: the standard deviation of ``ln(true / estimated)``."""
    return 0.35


def _filled(tiles: int, multiprocessors: int) -> float:
    """The share of the multiprocessors that have a tile to work on; halfway, as tiles come in many sizes."""
    if not tiles or not multiprocessors:
        return 1.0
    return math.sqrt(tiles / (math.ceil(tiles / multiprocessors) * multiprocessors))


def peak(gpu: Gpu, unit: str) -> float:
    """TFLOP/s of `gpu` in that unit; without a path of its own the work runs in fp32."""
    if unit == "fp64":
        return gpu.fp32 / 2
    return float(getattr(gpu, unit)) or gpu.fp32


@dataclass(frozen=True)
class Host:
    """What the host needs, in nanoseconds, without a profiler.

    `forward` and `backward` are from one operator that launches work to the next: Python, the dispatcher,
    autograd, and the operators between that launch nothing; `optimizer` is for one operator of an optimizer's
    step and `tensor` for each tensor that it is given. All hold the first launch, which takes `call`; every
    further kernel of an operator takes another. `handover` passes when autograd's thread takes over from the
    main thread, or gives back to it.
    """

    forward: float = 16_000
    backward: float = 13_000
    optimizer: float = 15_000
    tensor: float = 700
    call: float = 4_700
    handover: float = 60_000

    def needs(self, entry: Entry, kernels: int) -> float:
        """Nanoseconds for this operator, its launches included."""
        first = self.backward if entry.backward else self.optimizer if entry.optimizer else self.forward
        listed = self.tensor * entry.tensors if entry.tensors > 8 else 0.0
        return max(first, self.call) + listed + self.call * (kernels - 1)

    def paced(self, factor: float) -> Host:
        """A host whose own part takes so many times as long; the launching call is the driver's."""

        def own(time: float) -> float:
            return (time - self.call) * factor + self.call

        return replace(
            self,
            forward=own(self.forward),
            backward=own(self.backward),
            optimizer=own(self.optimizer),
            tensor=self.tensor * factor,
            handover=self.handover * factor,
        )

    def scaled(self, factor: float) -> Host:
        """A host that takes so many times as long, in everything."""
        return replace(
            self,
            forward=self.forward * factor,
            backward=self.backward * factor,
            optimizer=self.optimizer * factor,
            tensor=self.tensor * factor,
            call=self.call * factor,
            handover=self.handover * factor,
        )


USUAL = Host()
