"""How long copies between host and device take, and what the host needs for each operator: see `Host`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gapless.model.programme import Entry

UPDATES = {
    "fused": (25_000.0, 14_000.0, 1_800.0),
    "foreach": (33_000.0, 20_000.0, 2_400.0),
    "single": (25_000.0, 6_000.0, 9_000.0),
    "own": (25_000.0, 10_000.0, 2_000.0),
}
"""Nanoseconds of Python that a step of an optimizer takes on a usual host, besides its operators: for the
step, for each of its groups and for each parameter, by `OptimizerUse.way`. Measured on torch's optimizers
whose operators do nothing (``benchmarks/optimizer_host.py``)."""


@dataclass(frozen=True)
class Host:
    """What the host needs, in nanoseconds, without a profiler.

    `forward` and `backward` are from one operator that launches work to the next: Python, the dispatcher,
    autograd, and the operators between that launch nothing; `optimizer` is for one operator of an optimizer's
    step and `tensor` for each tensor that it is given; `python` is how many times the usual (`UPDATES`) the
    Python of such a step takes around its operators. All hold the first launch, which takes `call`; every
    further kernel of an operator takes another. `handover` passes when autograd's thread takes over from the
    main thread, or gives back to it.
    """

    forward: float = 16_000
    backward: float = 13_000
    optimizer: float = 11_000
    tensor: float = 400
    python: float = 1.0
    call: float = 4_700
    handover: float = 60_000

    def needs(self, entry: Entry, kernels: int) -> float:
        """Nanoseconds for this operator, its launches included."""
        first = self.backward if entry.backward else self.optimizer if entry.optimizer else self.forward
        listed = self.tensor * entry.tensors if entry.tensors > 8 else 0.0
        return max(first, self.call) + listed + self.call * (kernels - 1)

    def updating(self, entry: Entry) -> float:
        """Nanoseconds of an optimizer's own Python for a step of all its groups."""
        step, group, parameter = UPDATES.get(entry.detail, UPDATES["own"])
        return self.python * (step + group * entry.number + parameter * entry.tensors)

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
            python=self.python * factor,
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
            python=self.python * factor,
            call=self.call * factor,
            handover=self.handover * factor,
        )


USUAL = Host()
RENTED = 2.2
"""How many times the usual the CPUs take that L4s and T4s are rented with, older cores at low clocks. It was
chosen by four published steps of RF-DETR on an L4, which the CPU limits, so that these prove nothing of it
(``benchmarks/sheets/limiters.md``); that T4s have such CPUs beside them is assumed."""
OF_2017 = 1.4
"""The same of those that V100s stand beside: in NeuSight's tables, whose shortest times are the CPU's, single
operators take so much longer there than on an A100 (``benchmarks/sheets/hosts_beside.md``)."""
_BESIDE = ((r"\b[LT]4\b", RENTED), (r"\bV100\b", OF_2017))


def of_machines_with(gpu: str) -> float:
    """How many times the usual the CPUs take beside which a GPU of that name stands as a rule.

    >>> [of_machines_with(name) for name in ("Tesla T4", "Tesla V100-SXM2-16GB", "NVIDIA L40S")]
    [2.2, 1.4, 1.0]
    """
    return next((times for name, times in _BESIDE if re.search(name, gpu)), 1.0)
