"""The time that the host needs for each operator: see `HostTimes`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gapless.model.programme import Entry

OPTIMIZER_PYTHON = {
    "fused": (25_000.0, 14_000.0, 1_800.0),
    "foreach": (33_000.0, 20_000.0, 2_400.0),
    "single": (25_000.0, 6_000.0, 9_000.0),
    "own": (25_000.0, 10_000.0, 2_000.0),
}
"""Nanoseconds of Python in an optimizer's step on a usual host, besides its operators: per step, per group
and per parameter, by `OptimizerUse.way`. Measured on torch's optimizers with operators that do nothing
(``benchmarks/optimizer_host.py``)."""


@dataclass(frozen=True)
class HostTimes:
    """The times of the host without a profiler, in nanoseconds.

    `forward` and `backward` are from one launching operator to the next: Python, the dispatcher, autograd,
    and the operators in between that launch nothing; `optimizer` is for one operator of an optimizer's step
    and `tensor` for each of its tensors; `python` is a factor on the Python of such a step
    (`OPTIMIZER_PYTHON`). All include the first launch, which takes `call`; each further kernel of an operator
    adds another. `handover` passes when autograd's thread takes over from the main thread, or returns to it.
    """

    forward: float = 16_000
    backward: float = 13_000
    optimizer: float = 11_000
    tensor: float = 400
    python: float = 1.0
    call: float = 4_700
    handover: float = 60_000

    def operator_time(self, entry: Entry, kernels: int) -> float:
        """Nanoseconds for this operator, including its launches."""
        first = self.backward if entry.backward else self.optimizer if entry.optimizer else self.forward
        listed = self.tensor * entry.tensors if entry.tensors > 8 else 0.0
        return max(first, self.call) + listed + self.call * (kernels - 1)

    def optimizer_time(self, entry: Entry) -> float:
        """Nanoseconds of an optimizer's own Python for a step of all its groups."""
        step, group, parameter = OPTIMIZER_PYTHON.get(entry.detail, OPTIMIZER_PYTHON["own"])
        return self.python * (step + group * entry.number + parameter * entry.tensors)

    def change_pace(self, factor: float) -> HostTimes:
        """Return a host whose own part takes `factor` times as long; the launching call is the driver's."""

        def own(time: float) -> float:
            return (time - self.call) * factor + self.call

        return replace(
            self,
            forward=own(self.forward),
            backward=own(self.backward),
            optimizer=own(self.optimizer),
            tensor=self.tensor * factor,
            python=self.python * factor,
            handover=self.handover * factor,
        )

    def scaled(self, factor: float) -> HostTimes:
        """Return a host that takes `factor` times as long in everything."""
        return replace(
            self,
            forward=self.forward * factor,
            backward=self.backward * factor,
            optimizer=self.optimizer * factor,
            tensor=self.tensor * factor,
            python=self.python * factor,
            call=self.call * factor,
            handover=self.handover * factor,
        )


USUAL = HostTimes()
L4_HOST_FACTOR = 2.2
"""How many times as long as usual the CPUs take with which L4s and T4s are rented: older cores at low clocks.
Chosen by four published steps of RF-DETR on an L4 that the CPU limits, so that these are no evidence for it
(``benchmarks/sheets/limiters.md``); that T4s have such CPUs is assumed."""
V100_HOST_FACTOR = 1.4
"""The factor of CPUs beside V100s: in NeuSight's tables, whose shortest times are the CPU's, single operators
take so much longer there than on an A100 (``benchmarks/sheets/hosts_beside.md``)."""
_HOST_FACTORS = ((r"\b[LT]4\b", L4_HOST_FACTOR), (r"\bV100\b", V100_HOST_FACTOR))


def host_factor_beside(gpu: str) -> float:
    """Return how many times as long as usual the CPUs take that usually come with a GPU of that name.

    >>> [host_factor_beside(name) for name in ("Tesla T4", "Tesla V100-SXM2-16GB", "NVIDIA L40S")]
    [2.2, 1.4, 1.0]
    """
    return next((times for name, times in _HOST_FACTORS if re.search(name, gpu)), 1.0)
