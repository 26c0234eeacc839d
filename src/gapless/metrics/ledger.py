"""What the host knows about updates."""

from __future__ import annotations

from typing import Any


class Ledger:
    """What the host knows about a metric's updates."""

    def __init__(self) -> None:
        self.updated = False
        self.ever = False
        self.count = 0
        self.computed: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "computed": {}}  # Known by the identity of those that computed.

    def updated_once(self, compiling: bool) -> None:
        """There was an update; in a compiled function its number is not known."""
        self.updated = True
        if self.computed:
            self.computed.clear()
        if not compiling:
            self.count += 1

    def start_again(self) -> None:
        """There was a reset."""
        self.ever = self.ever or self.updated
        self.updated = False
        self.count = 0
        self.computed.clear()
