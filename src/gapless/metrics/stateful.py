"""What every metric holds: statistics, declared states, and what it was told about other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from gapless.metrics.ledger import Ledger
from gapless.metrics.statistic import State, Statistic


class Stateful:
    """What the parts of a metric work on: its statistics (`_parts`, by their `_names`), its declared states
    (by their `_own_defaults`), and its options.
    """

    full_state_update: bool | None
    compute_on_cpu: bool
    dist_sync_on_step: bool
    process_group: Any
    dist_sync_fn: Any
    distributed_available_fn: Callable[[], bool]
    _parts: list[Statistic]
    _names: list[str]
    _own_defaults: dict[str, Any]
    _own_reductions: dict[str, Any]
    _own_persistent: dict[str, bool]
    _ledger: Ledger
    _lender: Any
    _device: torch.device
    _local: list[State] | None

    def statistics(self) -> Iterator[tuple[str, Statistic]]:
        """The statistics this metric is computed from, by name."""
        return zip(self._names, self._parts, strict=True)

    @property
    def device(self) -> torch.device:
        """Where the states are."""
        parts = self._parts
        return parts[0].device if parts else self._device

    @property
    def metric_state(self) -> dict[str, Any]:
        """The states by name."""
        raise NotImplementedError

    def _holders(self) -> list[Stateful]:
        """The metrics whose declared states the result depends on."""
        return [self] if self._own_defaults else []
