"""Memory pools of captures: what a graph asks for stays its own until the graph is no more."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

Handle = tuple[int, int]


class Pool:
    """One private pool: bytes that live in it, and the most there have been, which it keeps.

    `graphs` are the captures that share it, in the order in which they were made.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.live = 0
        self.most = 0
        self.index = 0
        self.graphs: list[weakref.ref[Any]] = []
        self.row: Any = None
        self._members: dict[int, weakref.ref[Any]] = {}

    def take(self, storage: Any, size: int) -> None:
        """`storage` has been given memory of this pool."""
        self.live += size
        self.most = max(self.most, self.live)
        key = storage._cdata
        self._members[key] = weakref.ref(storage)
        weakref.finalize(storage, self._give, key, size).atexit = False

    def _give(self, key: int, size: int) -> None:
        self.live -= size
        self._members.pop(key, None)

    def has(self, storage: Any) -> bool:
        """Whether the memory of `storage` is of this pool."""
        known = self._members.get(storage._cdata)
        return known is not None and known() is storage

    @property
    def kept(self) -> int:
        """Bytes that the pool holds and nothing uses."""
        return max(self.most - self.live, 0)


class Pools:
    """The pools of one emulation, by their handles."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pools: dict[Handle, Pool] = {}

    def handle(self) -> Handle:
        """What ``torch.cuda.graph_pool_handle()`` gives."""
        return 0, next(self._numbers)

    def open(self, handle: Handle | None) -> Pool:
        """The pool of that handle, or a new one."""
        own = handle if handle is not None and any(handle) else (next(self._numbers), 0)
        return self._pools.setdefault(own, Pool(own))

    def release(self, pool: Pool, graph: Any) -> None:
        """`graph` is no more: with the last one the pool is given back."""
        pool.graphs = [one for one in pool.graphs if one() is not None and one() is not graph]
        if not pool.graphs:
            self._pools.pop(pool.handle, None)

    def have(self, storage: Any) -> bool:
        """Whether the memory of `storage` is of any pool: it stays, whoever holds it."""
        return any(one.has(storage) for one in self._pools.values())

    def kept(self, index: int) -> int:
        """Bytes that pools of device `index` hold and nothing uses."""
        return sum(one.kept for one in self._pools.values() if one.index == index)
