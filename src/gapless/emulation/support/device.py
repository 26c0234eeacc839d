"""`Device`: the protocol by which parts of the emulation use the emulated device."""

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

    @property
    def tick(self) -> int:
        """The number of steps that have ended."""

    def current_device(self) -> int:
        """Return the index of this thread's current device."""

    def set_current_device(self, index: int) -> None:
        """Make the existing device `index` this thread's current device."""

    def device_of(self, tensor: torch.Tensor) -> int:
        """Return the index of the device that holds `tensor`; -1 for the host."""

    def place(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        """Put the storage of `tensor` on device `index` and return the tensor."""

    def allocated(self, index: int) -> int:
        """Return the bytes of the live storages on device `index`."""

    def peak_allocated(self, index: int) -> int:
        """Return the most bytes on device `index` since the last `reset_peak`."""

    def reset_peak(self, index: int) -> None:
        """Reset the peak of device `index`."""

    def take_freed_bytes(self, index: int) -> int:
        """Return the bytes freed on device `index` since the last call."""

    def wait(
        self,
        operator: str,
        mechanism: Mechanism,
        *,
        call: str = "",
        detail: str = "",
        waits: int = 1,
        nbytes: int = 0,
    ) -> None:
        """Record that the host waits at the caller's line."""

    def record_stream_call(self, kind: Queued, stream: int, event: int = 0, index: int = 0) -> None:
        """Record a stream operation on device `index`.

        `kind` is ``stream`` (`stream` becomes current), ``record`` (the event with handle `event` is recorded
        in it) or ``await`` (later work in it waits for that event).
        """

    def note(self, text: str) -> None:
        """Add a remark to the report, once."""

    def note_query(self) -> None:
        """Record that the caller asks which GPU this is, or how much memory it has."""

    def clock(self) -> float:
        """Return monotonic seconds."""
