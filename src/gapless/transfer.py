"""Copy values from the device to the host without waiting."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from gapless import trees

_streams: dict[torch.device, Any] = {}
_HERE = object()


class Reading:
    """Values being copied to the host: tensors, or dicts, lists and tuples of tensors.

    On a GPU they are copied into pinned memory on a separate stream; on the CPU they are ready at once.

    >>> reading = Reading({"loss": torch.ones(())})
    >>> reading.ready(), reading.result()["loss"]
    (True, tensor(1.))
    """

    def __init__(self, values: Any) -> None:
        self._arrival = Arrival(list(trees.tensors(values)))
        self._form = trees.map_tensors(values, lambda _: _HERE)

    def ready(self) -> bool:
        """Whether the values have arrived; does not wait."""
        return self._arrival.ready()

    def result(self) -> Any:
        """Return the values as host tensors, in their original structure.

        **This waits** if they have not arrived yet.
        """
        arrived = iter(self._arrival.wait())
        return trees.map_tensors(
            self._form, lambda value: value, lambda value: next(arrived) if value is _HERE else value
        )

    def synchronize(self) -> None:
        """**Wait** until the values have arrived."""
        self._arrival.synchronize()

    def __await__(self) -> Generator[Any, None, Any]:
        """Let ``await reading`` run other tasks until the values have arrived."""
        while not self.ready():
            yield
        return self.result()


class Arrival:
    """Tensors copied to the host together, one copy per device and dtype."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._like = [(value.shape, value.dtype, value.device) for value in tensors]
        self._events: list[Any] = []
        self._landed: dict[Any, Tensor] = {}
        flat: dict[Any, list[Tensor]] = {}
        for value in tensors:
            flat.setdefault((value.dtype, value.device), []).append(value.detach().reshape(-1))
        for key, parts in flat.items():
            self._landed[key] = self._send(parts[0].clone() if len(parts) == 1 else torch.cat(parts))

    def _send(self, value: Tensor) -> Tensor:
        if value.device.type != "cuda":
            return value.cpu()
        if value.device not in _streams:
            _streams[value.device] = torch.cuda.Stream(value.device)
        stream = _streams[value.device]
        stream.wait_stream(torch.cuda.current_stream(value.device))
        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        with torch.cuda.stream(stream):
            host.copy_(value, non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
        value.record_stream(stream)
        self._events.append(event)
        return host

    def ready(self) -> bool:
        """Whether all tensors have arrived; does not wait."""
        return all(event.query() for event in self._events)

    def synchronize(self) -> None:
        """Wait until all tensors have arrived."""
        for event in self._events:
            event.synchronize()

    def wait(self) -> list[Tensor]:
        """Wait for all tensors and return them."""
        if not self.ready():
            self.synchronize()
        offsets = dict.fromkeys(self._landed, 0)
        arrived = []
        for shape, dtype, device in self._like:
            start = offsets[dtype, device]
            offsets[dtype, device] = end = start + shape.numel()
            arrived.append(self._landed[dtype, device][start:end].view(shape))
        return arrived
