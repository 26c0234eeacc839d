"""How long copies between host and device take, and what the host needs for each operator: see `Host`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gapless.model.programme import Entry


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
