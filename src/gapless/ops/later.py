"""Log values without waiting: they are kept on the device and copied together."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.ops.dtypes import sum_dtype
from gapless.transfer import Reading as Reading


def read_later(**values: Tensor) -> Reading:
    """Start copying `values` to the host without waiting: they can be read once `Reading.ready` is true.

    Replaces::

        print(loss.item())
        reading = ops.read_later(loss=loss)
        ...                                  # some steps later
        if reading.ready():
            print(reading.result()["loss"].item())

    The copies run on a stream of their own, into pinned memory.
    """
    return Reading(values)


class LogBuffer:
    """Keeps values of each step on the device until they are read together.

    Replaces::

        losses.append(loss.item())               # reads in each step
        log = ops.LogBuffer()                    # once
        log.add(loss=loss)                       # in each step
        reading = log.read()                     # every N steps; later, reading.result()["loss"].mean()

    `capacity` is the number of steps in the first allocation; it grows when more are added.
    """

    def __init__(self, capacity: int = 256) -> None:
        if capacity < 1:
            raise ValueError(f"expected room for at least one step, but got {capacity}")
        self._capacity = capacity
        self._series: dict[str, _Series] = {}

    def add(self, **values: Tensor | float) -> None:
        """Keep one value for each name: tensors of one element, or numbers, which stay on the host.

        Raises:
            ValueError: a tensor has more than one element.
            RuntimeError: a CUDA graph is being captured, whose replays would all write to the same place.
        """
        for name, value in values.items():
            if isinstance(value, Tensor) and value.numel() != 1:
                raise ValueError(f"expected one element for {name!r}, but got shape {tuple(value.shape)}")
            if isinstance(value, Tensor) and value.is_cuda and _is_capturing():
                raise RuntimeError(
                    "LogBuffer.add() inside a CUDA graph capture would write to the same place in every "
                    "replay: call it with the graph's output after each replay"
                )
        for name, value in values.items():
            if name not in self._series:
                self._series[name] = _Series(self._capacity)
            self._series[name].add(value)

    def read(self, *, reset: bool = True) -> Reading:
        """Start copying the kept values to the host: for each name a tensor (steps,). Does not wait.

        Half precision arrives as float32. With `reset` the buffer is empty afterwards.
        """
        reading = Reading({name: series.kept_values() for name, series in self._series.items()})
        if reset:
            for series in self._series.values():
                series.length = 0
        return reading


def _is_capturing() -> bool:
    return not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing()


class _Series:
    """The values of one name: a list of numbers, or a buffer on the device of the first tensor."""

    def __init__(self, capacity: int) -> None:
        self.length = 0
        self._numbers: list[float] = []
        self._buffer: Tensor | None = None
        self._capacity = capacity

    def add(self, value: Tensor | float) -> None:
        if not isinstance(value, Tensor):
            if self._buffer is None:
                del self._numbers[self.length :]
                self._numbers.append(value)
            else:
                self._next_row().fill_(value)
        elif value.device.type == "cpu" and self._buffer is not None and self._buffer.device.type != "cpu":
            self._next_row().fill_(value.item())  # a CPU tensor: no wait
        else:
            if self._buffer is None or self._buffer.device.type == "cpu" != value.device.type:
                self._allocate(value)
            self._next_row().copy_(value.detach().reshape(()), non_blocking=True)
        self.length += 1

    def kept_values(self) -> Tensor:
        """Return the kept values, (length,)."""
        if self._buffer is None:
            return torch.tensor(self._numbers[: self.length])
        return self._buffer[: self.length]

    def _allocate(self, value: Tensor) -> None:
        if self._buffer is not None:  # it was on the host so far
            self._numbers = self._buffer[: self.length].tolist()
        rows, kind = max(self._capacity, self.length), sum_dtype(value.dtype)
        with torch.inference_mode(False):  # or it could only be written in inference mode
            self._buffer = torch.empty(rows, dtype=kind, device=value.device)
        for at, number in enumerate(self._numbers[: self.length]):
            self._buffer[at].fill_(number)
        self._numbers = []

    def _next_row(self) -> Tensor:
        assert self._buffer is not None
        if self.length == self._buffer.shape[0]:
            with torch.inference_mode(False):
                self._buffer = torch.cat([self._buffer, torch.empty_like(self._buffer)])
        return self._buffer[self.length]
