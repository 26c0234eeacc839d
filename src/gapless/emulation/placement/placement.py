"""Which storages are on the emulated device.

Placement belongs to storages, not tensors: views, detached tensors and `param.data` share it without any
bookkeeping. Storages on the plain host are not in the table at all, so CPU code pays one failed look-up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from gapless.emulation.memory.requests import MemoryRecorder
from gapless.emulation.support.places import HOST
from gapless.torch_internals import (
    DisableTorchDispatch,
    DisableTorchFunction,
    free_weak_ref,
    functorch,
    storage_of_weak_ref,
    weak_ref_expired,
)

_BUFFER: Any = getattr(torch.nn, "Buffer", torch.nn.Parameter)  # since torch 2.5
_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter, _BUFFER})
_ATTRIBUTE = "_gapless_device"
_FIRST_SWEEP = 8192
"""Entries at which dead ones are first removed, so that small runs never sweep."""
_PEAK_SLACK = 1 << 20
"""Bytes that a peak may be exceeded by before the next sweep."""


class Placement:
    """Maps storages to a device index (0, 1, …) or to `PINNED` or `ORPHAN`.

    Keys are addresses of `StorageImpl`. A weak reference per entry keeps the address from being reused, so
    that a placement cannot leak onto a new tensor; dead entries are swept from time to time.
    """

    def __init__(self) -> None:
        self.where: dict[int, int] = {}
        self._weak: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._sweep_at = _FIRST_SWEEP
        self._held: dict[int, int] = {}  # bytes at each device, dead storages included
        self._sweep_above: dict[int, int] = {}  # bytes above which dead storages are swept
        self._peak: dict[int, int] = {}
        self._freed: dict[int, int] = {}
        self.placed = 0  # how often anything was put on a device
        self.memory: MemoryRecorder | None = None  # notified of placements and ends, if recorded
        self.pool: Any = None  # the memory pool of the capture under way

    # -- queries ------------------------------------------------------------------------------------

    def state_of(self, tensor: torch.Tensor) -> int:
        """Return the device index, `HOST`, `PINNED` or `ORPHAN`."""
        try:
            state = self.where.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            return self._state_without_storage(tensor)
        except ValueError:  # a lazy module's uninitialized parameter
            with DisableTorchFunction():
                return self.where.get(tensor.untyped_storage()._cdata, HOST)
        if state is not None:
            return state
        return HOST if type(tensor) in _PLAIN_TYPES else self._inner_state(tensor)

    def _inner_state(self, tensor: torch.Tensor) -> int:
        """Return the state of the tensor inside a wrapper subclass (`DTensor`), which has no values
        itself."""
        if hasattr(type(tensor), "__tensor_flatten__"):
            with contextlib.suppress(AttributeError, NotImplementedError):  # under construction
                for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
                    inner = getattr(tensor, name)
                    if isinstance(inner, torch.Tensor):
                        return self.state_of(inner)
        return HOST

    def device_of(self, tensor: torch.Tensor) -> int:
        """Return the device index, or -1 on the host."""
        state = self.state_of(tensor)
        return state if state >= 0 else HOST

    def _state_without_storage(self, tensor: torch.Tensor) -> int:
        """Return the state of a tensor without storage: a sparse one's own mark, or the tensor inside
        functorch's wrapper."""
        mark = getattr(tensor, _ATTRIBUTE, None)
        if mark is not None:
            return int(mark)
        inner = unwrap(tensor)
        if inner is not tensor:
            return self.state_of(inner)
        for part in sparse_parts(tensor):
            return self.state_of(part)
        return HOST

    # -- changes -----------------------------------------------------------------------------------

    def put(self, tensor: torch.Tensor, state: int) -> torch.Tensor:
        """Place the storage of `tensor` at `state`; return `tensor`."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            self._put_without_storage(tensor, state)
            return tensor
        except ValueError:
            with DisableTorchFunction():
                storage = tensor.untyped_storage()
        self.put_storage(storage, state)
        return tensor

    def put_storage(self, storage: Any, state: int) -> None:
        """Like `put`, for an `UntypedStorage`."""
        key, where = storage._cdata, self.where
        before = where.get(key)
        if before is not None:
            self._leave(key, before, state)
        if state == HOST:
            return
        if before is None:
            self._weak[key] = storage._weak_ref()
        where[key] = state
        self._bytes[key] = size = storage.nbytes()
        if state >= 0:
            self.placed += 1
            held = self._held[state] = self._held.get(state, 0) + size
            if held > self._sweep_above.get(state, 0):
                self.sweep()
            if self.pool is not None and before is None:
                self.pool.take(storage, size)
            if self.memory is not None:
                self.memory.record_placement(storage, key, size, state)
        if len(where) > self._sweep_at:
            self.sweep()

    def _leave(self, key: int, before: int, state: int) -> None:
        """Note that the storage with that key moves from `before` to `state`."""
        if before >= 0:
            self._held[before] -= self._bytes[key]
            if self.memory is not None and state != before:
                self.memory.record_end(key)
        if state == HOST:
            del self.where[key], self._bytes[key]
            free_weak_ref(self._weak.pop(key))

    def update_size(self, storage: Any) -> bool:
        """Update the size of `storage`; return whether it changed."""
        state = self.where.get(storage._cdata)
        if state is not None and self._bytes[storage._cdata] != storage.nbytes():
            if self.memory is not None:
                self.memory.record_end(storage._cdata)
            self.put_storage(storage, state)
            return True
        return False

    def _put_without_storage(self, tensor: torch.Tensor, state: int) -> None:
        inner = unwrap(tensor)
        if inner is not tensor:
            self.put(inner, state)
            return
        for part in sparse_parts(tensor):
            self.put(part, state)
        setattr(tensor, _ATTRIBUTE, state)

    def sweep(self) -> None:
        """Drop storages that no longer exist."""
        for key, weak in list(self._weak.items()):
            if weak_ref_expired(weak):
                free_weak_ref(weak)
                state, size = self.where.pop(key), self._bytes.pop(key)
                del self._weak[key]
                if state >= 0:
                    self._held[state] -= size
                    self._freed[state] = self._freed.get(state, 0) + size
        for state, held in self._held.items():
            peak = self._peak[state] = max(self._peak.get(state, 0), held)
            self._sweep_above[state] = peak + (peak >> 5) + _PEAK_SLACK
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._weak))

    def storages(self) -> list[Any]:
        """Return the live storages that are on a device."""
        live = (
            storage_of_weak_ref(weak)
            for key, weak in list(self._weak.items())
            if self.where.get(key, HOST) >= 0
        )
        return [storage for storage in live if storage is not None]

    def notify(self, memory: MemoryRecorder | None) -> None:
        """Notify `memory` from now on of placements and ends, and once of all live storages."""
        if memory is not None and self.memory is not memory:
            for storage in self.storages():
                key = storage._cdata
                memory.record_placement(storage, key, self._bytes[key], self.where[key])
        self.memory = memory

    def clear(self) -> None:
        """Drop all placements."""
        for weak in self._weak.values():
            free_weak_ref(weak)
        for table in (self._weak, self.where, self._bytes, self._held):
            table.clear()

    # -- memory ------------------------------------------------------------------------------------

    def allocated(self, index: int) -> int:
        """Return the bytes of live storages on device `index`."""
        self.sweep()
        return self._held.get(index, 0)

    def take_freed_bytes(self, index: int) -> int:
        """Return the bytes on device `index` freed since the last call, for a cache to keep."""
        self.sweep()
        return self._freed.pop(index, 0)

    def peak(self, index: int) -> int:
        """Return the most bytes live at once on device `index`, to within a megabyte and three percent."""
        self.sweep()
        return self._peak.get(index, 0)

    @contextlib.contextmanager
    def without_peaks(self) -> Iterator[None]:
        """Ignore peaks inside the block, whose memory is counted already."""
        self.sweep()
        before = dict(self._peak)
        try:
            yield
        finally:
            self.sweep()
            self._peak.update(before)

    def reset_peak(self, index: int) -> None:
        """Restart the peak from the bytes allocated now."""
        self._peak[index] = 0
        self.sweep()


def unwrap(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside functorch's wrappers (`vmap`, `grad`), or `tensor` itself."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def sparse_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors that a sparse one consists of."""
    layout = tensor.layout
    with DisableTorchDispatch(), DisableTorchFunction():
        if layout is torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        if layout in (torch.sparse_csr, torch.sparse_bsr):
            return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        if layout in (torch.sparse_csc, torch.sparse_bsc):
            return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []
