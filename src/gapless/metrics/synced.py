"""A metric's states over all processes, in the place of the local ones for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gapless.metrics import declared
from gapless.metrics.checks import user_error
from gapless.metrics.global_states import on_the_way
from gapless.metrics.stateful import Stateful
from gapless.metrics.statistic import swap


class Synced(Stateful):
    """What a metric says about other processes."""

    _cache: list[tuple[Stateful, dict[str, Any]]] | None

    def sync(
        self,
        dist_sync_fn: Any = None,
        process_group: Any = None,
        should_sync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> None:
        """Put the states reduced over all processes in place of the local ones, until :meth:`unsync`."""
        if self._local is not None and should_sync:
            raise user_error(RuntimeError, "The Metric has already been synced. Call ``unsync`` first")
        available = distributed_available or self.distributed_available_fn
        if not should_sync or not available():
            return
        gather = dist_sync_fn or self.dist_sync_fn
        group = process_group or self.process_group
        reduced = on_the_way(self._parts, group, gather, False).states() if self._parts else []
        own, holders = self.__dict__, self._holders()
        own["_local"] = swap(self._parts, reduced)
        own["_cache"] = [(one, declared.put(one, declared.reduce(one, group, gather))) for one in holders]

    def unsync(self, should_unsync: bool = True) -> None:
        """Put the local states back."""
        if not should_unsync:
            return
        if self._local is None:
            raise user_error(RuntimeError, "The Metric has already been un-synced.")
        if self._cache is None:
            raise RuntimeError("The internal cache should exist to unsync the Metric.")
        swap(self._parts, self._local)
        for holder, states in self._cache:
            declared.put(holder, states)
        self.__dict__.update(_local=None, _cache=None)

    @contextmanager
    def sync_context(self, should_unsync: bool = True, **options: Any) -> Iterator[None]:
        """The states of all processes inside the block, the local ones after it (unless `should_unsync` is
        False); `options` as in :meth:`sync`.
        """
        before = self._local
        self.sync(**options)
        try:
            yield
        finally:
            if should_unsync and self._local is not None and before is None:
                self.unsync()

    @property
    def _is_synced(self) -> bool:
        return self._local is not None

    def _distributed(self) -> bool:
        return bool(self.distributed_available_fn())
