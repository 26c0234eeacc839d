"""A `MemoryRun` made event by event, by whoever sees memory being asked for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from gapless.memory.frames import Places, kind_of
from gapless.model.memory import ALLOC, DEFER, DONE, EMPTY, FREE, STEP, Kind, MemoryRun
from gapless.model.source import SourceLine


class Recorder:
    """Gathers events; :meth:`run` gives what was gathered so far.

    Tensors are named by anything hashable; a name can be used again once its tensor was freed. What is freed
    and was never seen is left out, as are requests of no bytes: torch does not ask its allocator for those.
    """

    def __init__(self) -> None:
        self._rows: tuple[list[int], ...] = tuple([] for _ in range(6))
        self._places = Places()
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
        """`size` bytes are asked for by `stack`, innermost first; `kind` None: what the stack tells."""
        if size <= 0:
            return
        if name in self._live:
            self.free(name, time=time)
        ident = self._live[name] = self._count
        self._count += 1
        place = self._places.intern(stack, operator, kind or kind_of(stack))
        self._row(ALLOC, ident, size, stream, place, time)

    def free(self, name: Hashable, *, waits: bool = False, time: int = 0) -> None:
        """The tensor is given back; where another stream still uses it (`waits`), :meth:`done` follows."""
        ident = self._live.pop(name, -1)
        if ident < 0:
            return
        if waits:
            self._deferred[name] = ident
        self._row(DEFER if waits else FREE, ident, 0, 0, -1, time)

    def done(self, name: Hashable, *, time: int = 0) -> None:
        """The other stream has passed it."""
        ident = self._deferred.pop(name, -1)
        if ident >= 0:
            self._row(DONE, ident, 0, 0, -1, time)

    def step(self, *, time: int = 0) -> None:
        """A training step has ended."""
        self._row(STEP, -1, 0, 0, -1, time)

    def empty_cache(self, *, time: int = 0) -> None:
        """``torch.cuda.empty_cache()`` was called."""
        self._row(EMPTY, -1, 0, 0, -1, time)

    def _row(self, *values: int) -> None:
        for column, value in zip(self._rows, values, strict=True):
            column.append(value)

    def run(self, **fields: Any) -> MemoryRun:
        """Everything so far; `fields` (origin, path, gpu, total_memory, settings, notes) are taken over."""
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
