"""Update counts and cached results of a metric, known on the host."""

from __future__ import annotations

from typing import Any


class Ledger:
    """What the host knows about a metric's updates: whether, how many, and cached results."""

    def __init__(self) -> None:
        self.updated = False
        self.ever = False
        self.count = 0
        self.computed: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "computed": {}}  # The keys are ids of objects in this process.

    def record_update(self, compiling: bool) -> None:
        """Record an update; inside a compiled function it is not counted."""
        self.updated = True
        if self.computed:
            self.computed.clear()
        if not compiling:
            self.count += 1

    def record_reset(self) -> None:
        """Record a reset."""
        self.ever = self.ever or self.updated
        self.updated = False
        self.count = 0
        self.computed.clear()
