"""What the parts of the emulation may ask of the device that is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from gapless.emulation.graphs.state import Graphs
    from gapless.emulation.races.checker import Checker
    from gapless.model.event import Mechanism
    from gapless.model.gpus import Gpu


Queued = Literal["stream", "record", "await"]


class Device(Protocol):
    """The emulated devices: placement of storages, the current device, and the record of waits."""

    gpu: Gpu
    device_count: int
    races: Checker
    graphs: Graphs

    def current_device(self) -> int:
        """Index of this thread's current device."""

    def set_current_device(self, index: int) -> None:
        """Make `index`, which exists, this thread's current device."""

    def device_of(self, tensor: torch.Tensor) -> int:
        """Index of the device that holds `tensor`; -1 for the host."""

    def place(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        """Put the storage of `tensor` on device `index` and return the tensor."""

    def allocated(self, index: int) -> int:
        """Bytes of the live storages on device `index`."""

    def peak_allocated(self, index: int) -> int:
        """The most bytes there have been on device `index` since the last `reset_peak`."""

    def reset_peak(self, index: int) -> None:
        """Count the peak of device `index` afresh."""

    def take_freed(self, index: int) -> int:
        """Bytes that ceased to be on device `index` since the last call."""

    def wait(
        self, operator: str, mechanism: Mechanism, *, call: str = "", detail: str = "", waits: int = 1
    ) -> None:
        """Record that the host waits here, at the caller's line."""

    def queued(self, kind: Queued, stream: int, event: int = 0, index: int = 0) -> None:
        """Note what is asked of streams of device `index`: `stream` becomes current (``stream``), the event
        with that handle is recorded in it (``record``), or what it gets from now on waits for that event
        (``await``)."""

    def note(self, text: str) -> None:
        """Put a remark into the report, once."""

    def asked(self) -> None:
        """Note that whoever called asks which GPU this is, or how much memory it has."""

    def clock(self) -> float:
        """Seconds, monotonic."""
