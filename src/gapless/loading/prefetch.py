"""`DevicePrefetcher`: copy the next batch while this one is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from gapless.errors import UsageError
from gapless.loading.nested import OpaqueObject, move_to, record_stream


class DevicePrefetcher:
    """A loader whose batches arrive on `device`, copied on a stream of their own, `depth` batches ahead.

    Batches keep their order and type: tensors in dicts, lists, tuples, named tuples, dataclasses, packed
    sequences and objects with a ``to`` are moved, everything else stays. Unpinned tensors are pinned on the
    way; ``pin_memory=True`` in the loader does it in a thread, which is better. Nothing waits on the host;
    the stream in which the loop requests a batch waits for its copy, and the memory is not reused before that
    stream has passed.

    On the CPU batches pass unchanged. The default is the current CUDA device, or the CPU if there is none.
    Each pass is independent, and one that is left early or fails closes the loader's iterator. Other
    attributes are the loader's own (``prefetcher.dataset``, ``prefetcher.sampler``).
    """

    def __init__(
        self, loader: Iterable[Any], device: torch.device | str | int | None = None, *, depth: int = 1
    ) -> None:
        if depth < 1:
            raise UsageError(f"depth={depth}: at least one batch must be prefetched")
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.loader = loader
        self.device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        self.depth = depth
        self._state: Any = None

    def __len__(self) -> int:
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self._state = None
        if self.device.type == "cpu":
            return iter(self.loader)
        return self._iterate_ahead(iter(self.loader))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loader, name)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state at the batch that the loop has, not at those copied ahead."""
        return dict(self.loader.state_dict() if self._state is None else self._state)  # type: ignore[attr-defined]

    def _iterate_ahead(self, iterator: Iterator[Any]) -> Iterator[Any]:
        side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        stateful = hasattr(self.loader, "state_dict")
        waiting: deque[_BatchInFlight] = deque()
        failure: Exception | None = None
        try:
            while failure is None or waiting:
                while failure is None and len(waiting) <= self.depth:
                    try:
                        batch = next(iterator)
                    except (
                        Exception
                    ) as error:  # also StopIteration; batches before it are still to be yielded
                        failure = error
                    else:
                        state = self.loader.state_dict() if stateful else None  # type: ignore[attr-defined]
                        waiting.append(_send(batch, self.device, side, state))
                        del batch
                if waiting:
                    sent = waiting.popleft()
                    self._state = sent.state
                    arrived = _receive(sent, self.device)
                    del sent
                    yield arrived
                    del arrived  # otherwise a batch's memory stays in use for one more step
            if not isinstance(failure, StopIteration):
                assert failure is not None
                raise failure
        finally:
            waiting.clear()
            close = getattr(iterator, "close", None)
            del iterator
            if close is not None:
                with suppress(ValueError):  # a running generator cannot be closed
                    close()


class _BatchInFlight(NamedTuple):
    batch: Any
    copied: torch.cuda.Event | None
    """Recorded behind the copies; None if the batch is still on the host."""
    state: Any


def _send(batch: Any, device: torch.device, side: torch.cuda.Stream | None, state: Any) -> _BatchInFlight:
    """Start copying `batch`."""
    if side is None:
        return _BatchInFlight(batch, None, state)
    with torch.cuda.stream(side):
        try:
            batch = move_to(batch, device)
        except OpaqueObject:
            # Its memory cannot be kept for the loop's stream, so that stream must copy it itself.
            return _BatchInFlight(batch, None, state)
        copied = torch.cuda.Event()
        copied.record(side)
    return _BatchInFlight(batch, copied, state)


def _receive(sent: _BatchInFlight, device: torch.device) -> Any:
    """Return the batch for use in the current stream."""
    if sent.copied is None:
        return move_to(sent.batch, device, opaque=True)
    current = torch.cuda.current_stream(device)
    current.wait_event(sent.copied)
    record_stream(sent.batch, current)
    return sent.batch
