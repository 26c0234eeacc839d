"""Count the updates without bad values of several statistics, with one kernel for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import is_capturing
from gapless.metrics.statistic import Statistic


class Board:
    """A tensor that holds the ``"clean"`` counters of all statistics of a collection."""

    def __init__(self) -> None:
        self._cells: Tensor | None = None
        self._views: list[Tensor] = []

    def note(self, parts: Sequence[Statistic]) -> None:
        """Run :meth:`Statistic.note` for all `parts`, with one kernel where possible."""
        checked = [part for part in parts if part.checked and part.device.type == "cuda"]
        checked = [part for part in checked if not (part.in_batch or part.noted)]
        if checked and is_capturing(checked[0].device):
            for part in checked:
                part.replayed = True
        cells_of_parts = (
            [(part, part.fault_cells()) for part in checked] if self._can_share_kernel(checked) else []
        )
        cells = {
            id(part): cell for part, cell in cells_of_parts if cell is not None and cell.dtype == torch.int64
        }
        counters = (
            self._shared_counters([part for part in checked if id(part) in cells]) if len(cells) > 1 else None
        )
        if counters is not None:
            counters.add_(
                torch.cat([cell if cell.dim() else cell.expand(1, 2) for cell in cells.values()]) == 0
            )
        for part in parts:
            if counters is None or id(part) not in cells:
                part.note()

    @staticmethod
    def _can_share_kernel(parts: Sequence[Statistic]) -> bool:
        return len(parts) > 1 and not torch.compiler.is_compiling()

    def _shared_counters(self, parts: Sequence[Statistic]) -> Tensor | None:
        """Return the tensor with the counters of all `parts`; None if they must not be moved into it."""
        views = [part.state["clean"] for part in parts]
        if len(views) == len(self._views) and all(a is b for a, b in zip(views, self._views, strict=True)):
            return self._cells
        if is_capturing(parts[0].device):  # a graph's replays write to the present tensors
            return None
        with torch.inference_mode(False):
            cells = torch.cat([view.clone() if view.dim() else view.expand(1, 2) for view in views])
        offset, self._cells, self._views = 0, cells, []
        for part, view in zip(parts, views, strict=True):
            counter = cells[offset : offset + len(view)] if view.dim() else cells[offset, 0]
            part.state["clean"] = counter
            self._views.append(counter)
            offset += len(view) if view.dim() else 1
        return cells

    def __reduce__(self) -> Any:
        return Board, ()
