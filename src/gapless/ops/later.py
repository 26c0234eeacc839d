"""Values that are logged: kept on the device step by step, and read without waiting for them."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.ops.dtypes import wide
from gapless.transfer import Reading as Reading


def read_later(**values: Tensor) -> Reading:
    """Start copying `values` to the host, and go on: they are read once :meth:`Reading.ready` says so.

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
    """Values of each step, kept on the device until they are read together.

    Replaces::

        losses.append(loss.item())               # reads in each step
        log = ops.LogBuffer()                    # once
        log.add(loss=loss)                       # in each step
        reading = log.read()                     # every N steps; later, reading.result()["loss"].mean()

    `capacity` is the number of steps for which memory is taken at first; it grows when more are added.
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
            RuntimeError: a CUDA graph is being captured, of which each replay would write the same place.
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
        """Start copying what was kept to the host: for each name a tensor (steps,). Does not wait.

        Half precision arrives as float32. With `reset` the buffer is empty afterwards.
        """
        reading = Reading({name: series.kept() for name, series in self._series.items()})
        if reset:
            for series in self._series.values():
                series.length = 0
        return reading


def _is_capturing() -> bool:
    return not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing()


class _Series:
    """The values of one name: a list of numbers, or a buffer where the first tensor was."""

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
                self._row().fill_(value)
        elif value.device.type == "cpu" and self._buffer is not None and self._buffer.device.type != "cpu":
            self._row().fill_(value.item())  # a number of the host
        else:
            if self._buffer is None or self._buffer.device.type == "cpu" != value.device.type:
                self._begin(value)
            self._row().copy_(value.detach().reshape(()), non_blocking=True)
        self.length += 1

    def kept(self) -> Tensor:
        """What is kept, (length,)."""
        if self._buffer is None:
            return torch.tensor(self._numbers[: self.length])
        return self._buffer[: self.length]

    def _begin(self, value: Tensor) -> None:
        if self._buffer is not None:  # on the host until now
            self._numbers = self._buffer[: self.length].tolist()
        rows, kind = max(self._capacity, self.length), wide(value.dtype)
        with torch.inference_mode(False):  # else it could be written in inference only
            self._buffer = torch.empty(rows, dtype=kind, device=value.device)
        for at, number in enumerate(self._numbers[: self.length]):
            self._buffer[at].fill_(number)
        self._numbers = []

    def _row(self) -> Tensor:
        assert self._buffer is not None
        if self.length == self._buffer.shape[0]:
            with torch.inference_mode(False):
                self._buffer = torch.cat([self._buffer, torch.empty_like(self._buffer)])
        return self._buffer[self.length]
