"""Build a `MemoryRun` from allocations reported one by one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from gapless.memory.frames import PlaceTable, kind_of
from gapless.model.memory import ALLOC, DEFER, DONE, EMPTY, FREE, STEP, Kind, MemoryRun
from gapless.model.source import SourceLine


class Recorder:
    """Collects events; :meth:`run` returns the run up to now.

    Tensors are identified by any hashable; it can be reused once the tensor is freed. Unknown tensors that
    are freed are ignored, and so are requests of zero bytes, as torch does not pass them to its allocator.
    """

    def __init__(self) -> None:
        self._rows: tuple[list[int], ...] = tuple([] for _ in range(6))
        self._places = PlaceTable()
        self._live: dict[Hashable, int] = {}
        self._deferred: dict[Hashable, int] = {}
        self._count = 0

    def alloc(
        self,
        name: Hashable,
        size: int,
        stream: int = 0,
        stack: Sequence[SourceLine] = (),
        kind: Kind | None = None,
        *,
        operator: str = "",
        time: int = 0,
    ) -> None:
        """Record an allocation of `size` bytes by `stack`, innermost first; `kind` None: derive it from the
        stack.
        """
        if size <= 0:
            return
        if name in self._live:
            self.free(name, time=time)
        ident = self._live[name] = self._count
        self._count += 1
        place = self._places.intern(stack, operator, kind or kind_of(stack))
        self._row(ALLOC, ident, size, stream, place, time)

    def free(self, name: Hashable, *, waits: bool = False, time: int = 0) -> None:
        """Record that a tensor is freed; with `waits` another stream still uses it until :meth:`done`."""
        ident = self._live.pop(name, -1)
        if ident < 0:
            return
        if waits:
            self._deferred[name] = ident
        self._row(DEFER if waits else FREE, ident, 0, 0, -1, time)

    def done(self, name: Hashable, *, time: int = 0) -> None:
        """Record that the other stream no longer uses a freed tensor."""
        ident = self._deferred.pop(name, -1)
        if ident >= 0:
            self._row(DONE, ident, 0, 0, -1, time)

    def step(self, *, time: int = 0) -> None:
        """Record the end of a training step."""
        self._row(STEP, -1, 0, 0, -1, time)

    def empty_cache(self, *, time: int = 0) -> None:
        """Record a call of ``torch.cuda.empty_cache()``."""
        self._row(EMPTY, -1, 0, 0, -1, time)

    def _row(self, *values: int) -> None:
        for column, value in zip(self._rows, values, strict=True):
            column.append(value)

    def run(self, **fields: Any) -> MemoryRun:
        """Return the run so far; `fields` are other fields of `MemoryRun` (origin, path, gpu, settings,
        …).
        """
        action, ident, size, stream, place, time = map(tuple, self._rows)
        return MemoryRun(
            action=action,
            ident=ident,
            size=size,
            stream=stream,
            place=place,
            time=time if any(time) else (),
            places=tuple(self._places.places),
            lines=tuple(self._places.lines),
            **fields,
        )
