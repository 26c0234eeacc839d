"""Statistics with as many outputs or classes as the first batch has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gapless.metrics.batch import move_to_device
from gapless.metrics.statistic import Slot, State, Statistic


class SizedByData(Statistic):
    """A statistic of `size` outputs or classes; None to take it from the first batch.

    A subclass defines its slots in :meth:`slots_for` and calls :meth:`fix_size` before it counts a batch.
    With several processes the size is exchanged before states are reduced, and **the host waits** for it: a
    process without data takes the others'. If `size` is given, nothing is exchanged.
    """

    def __init__(self, size: int | None, config: tuple[Any, ...], checked: bool = True) -> None:
        self.size = size
        self.sized_by_data = size is None
        super().__init__((size, *config), self.slots_for(size), checked)

    def slots_for(self, size: int | None) -> dict[str, Slot]:
        """Return the slots for `size` outputs or classes; for None those before any batch."""
        raise NotImplementedError

    def size_in(self, saved: State) -> int:
        """Return the size of a saved state; 0 if it has none."""
        raise NotImplementedError

    def fix_size(self, size: int) -> None:
        """Fix the size, unless it is fixed already, and allocate the state for it."""
        if self.size is not None:
            return
        self.size = size
        slots = {**self.slots_for(size), "clean": self.clean}
        if slots == self.slots:
            return
        self.slots = slots
        self.state = self._allocate()
        self._scratch = None if self._whole is None else self.state
        self._whole = None if self._whole is None else self._allocate()

    def refuse_other_sizes(self, saved: Mapping[str, Tensor]) -> None:
        if self.size_in(dict(saved)):  # otherwise it has no data and fits any size
            super().refuse_other_sizes(saved)

    def load(self, saved: dict[str, Tensor]) -> None:
        saved = {name: value.cpu() for name, value in saved.items()}  # its size may have to be read
        size = self.size_in(saved)
        if size:
            self.fix_size(size)
        super().load(saved)

    def absorb(self, other: Statistic) -> None:
        assert isinstance(other, SizedByData)
        if other.size is not None:
            self.fix_size(other.size)
            super().refuse_other_sizes(other.saved_state())
        super().absorb(other)


def exchange_sizes(statistics: Sequence[Statistic], group: Any, carrier: torch.device | None) -> None:
    """Give statistics without data the size that other processes have. **The host waits.**

    Nothing is exchanged if every size was given.
    """
    parts = [part for part in statistics if isinstance(part, SizedByData) and part.sized_by_data]
    if not parts:
        return
    sizes = torch.tensor([part.size or 0 for part in parts], device="cpu")
    largest_sizes = move_to_device(sizes, carrier or parts[0].device)
    dist.all_reduce(largest_sizes, op=dist.ReduceOp.MAX, group=group)
    for part, size in zip(parts, largest_sizes.tolist(), strict=True):
        if size:
            part.fix_size(size)
