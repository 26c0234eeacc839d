"""Statistics of as many outputs or classes as the first batch shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gapless.metrics.batch import moved
from gapless.metrics.statistic import Slot, State, Statistic


class SizedByData(Statistic):
    """A statistic of `size` outputs or classes; with None the first batch shows how many.

    A subclass names its slots for a size in :meth:`sized` and calls :meth:`show` before it counts a batch.
    Over several processes the size is exchanged before states are reduced, and **the host waits** for it: a
    process without data has the others'. Where the size is given there is nothing to exchange.
    """

    def __init__(self, size: int | None, config: tuple[Any, ...], checked: bool = True) -> None:
        self.size = size
        self.shown = size is None
        super().__init__((size, *config), self.sized(size), checked)

    def sized(self, size: int | None) -> dict[str, Slot]:
        """The slots for `size`; for None those that stand there before any batch."""
        raise NotImplementedError

    def size_in(self, saved: State) -> int:
        """The size of which a saved state is; 0 where it does not tell."""
        raise NotImplementedError

    def show(self, size: int) -> None:
        """The data have `size` outputs or classes; from here on it stays the same."""
        if self.size is not None:
            return
        self.size = size
        slots = {**self.sized(size), "clean": self.clean}
        if slots == self.slots:
            return
        self.slots = slots
        self.state = self._allocate()
        self._scratch = None if self._whole is None else self.state
        self._whole = None if self._whole is None else self._allocate()

    def refuse_other_sizes(self, saved: Mapping[str, Tensor]) -> None:
        if self.size_in(dict(saved)):  # otherwise it is of a time without data, and adds nothing to any size
            super().refuse_other_sizes(saved)

    def load(self, saved: dict[str, Tensor]) -> None:
        size = self.size_in(saved)
        if size:
            self.show(size)
        super().load(saved)

    def absorb(self, other: Statistic) -> None:
        assert isinstance(other, SizedByData)
        if other.size is not None:
            self.show(other.size)
        super().absorb(other)


def exchange_sizes(statistics: Sequence[Statistic], group: Any, carrier: torch.device | None) -> None:
    """Show statistics that have met no data the size of those in other processes. **The host waits.**

    Nothing is exchanged where every size was given.
    """
    parts = [part for part in statistics if isinstance(part, SizedByData) and part.shown]
    if not parts:
        return
    sizes = torch.tensor([part.size or 0 for part in parts], device="cpu")
    found = moved(sizes, carrier or parts[0].device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    for part, size in zip(parts, found.tolist(), strict=True):
        if size:
            part.show(size)
