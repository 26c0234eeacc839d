"""Private memory pools of captures: a pool keeps its memory until its last graph is deleted."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

Handle = tuple[int, int]


class GraphPool:
    """One private pool: bytes in use (`live`) and their `peak`, which the pool keeps reserved.

    `graphs` are the captures that share it, in the order of their creation.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.live = 0
        self.peak = 0
        self.index = 0
        self.graphs: list[weakref.ref[Any]] = []
        self.row: Any = None
        self._members: dict[int, weakref.ref[Any]] = {}

    def take(self, storage: Any, size: int) -> None:
        """Count `storage`, of `size` bytes, as allocated in this pool until it ends."""
        self.live += size
        self.peak = max(self.peak, self.live)
        key = storage._cdata
        self._members[key] = weakref.ref(storage)
        weakref.finalize(storage, self._free, key, size).atexit = False

    def _free(self, key: int, size: int) -> None:
        self.live -= size
        self._members.pop(key, None)

    def has(self, storage: Any) -> bool:
        """Whether `storage` is allocated in this pool."""
        member = self._members.get(storage._cdata)
        return member is not None and member() is storage

    @property
    def kept(self) -> int:
        """Bytes reserved by the pool that nothing uses."""
        return max(self.peak - self.live, 0)


class Pools:
    """The pools of one emulation, by their handles."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pools: dict[Handle, GraphPool] = {}

    def handle(self) -> Handle:
        """Return a new handle, for ``torch.cuda.graph_pool_handle()``."""
        return 0, next(self._numbers)

    def open(self, handle: Handle | None) -> GraphPool:
        """Return the pool of `handle`, or a new one."""
        own = handle if handle is not None and any(handle) else (next(self._numbers), 0)
        return self._pools.setdefault(own, GraphPool(own))

    def release(self, pool: GraphPool, graph: Any) -> None:
        """Remove `graph` from `pool`; the pool ends with its last graph."""
        pool.graphs = [user for user in pool.graphs if user() is not None and user() is not graph]
        if not pool.graphs:
            self._pools.pop(pool.handle, None)

    def have(self, storage: Any) -> bool:
        """Whether `storage` is allocated in any pool, whose memory outlives it."""
        return any(pool.has(storage) for pool in self._pools.values())

    def kept(self, index: int) -> int:
        """Return the bytes reserved by pools of device `index` that nothing uses."""
        return sum(pool.kept for pool in self._pools.values() if pool.index == index)
