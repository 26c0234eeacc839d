"""Several statistics note together, with one kernel, which updates were free of bad values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import is_capturing
from gapless.metrics.statistic import Statistic


class Board:
    """One tensor in which the statistics of a collection keep their numbers of clean updates."""

    def __init__(self) -> None:
        self._cells: Tensor | None = None
        self._views: list[Tensor] = []

    def note(self, parts: Sequence[Statistic]) -> None:
        """What :meth:`Statistic.note` does, for all of `parts`."""
        able = [part for part in parts if part.checked and part.device.type == "cuda"]
        able = [part for part in able if not (part.in_batch or part.noted)]
        if able and is_capturing(able[0].device):
            for part in able:
                part.replayed = True
        found = [(part, part.fault_cells()) for part in able] if self._together(able) else []
        cells = {id(part): cell for part, cell in found if cell is not None and cell.dtype == torch.int64}
        board = self._bound([part for part in able if id(part) in cells]) if len(cells) > 1 else None
        if board is not None:
            board.add_(torch.cat([one if one.dim() else one.expand(1, 2) for one in cells.values()]) == 0)
        for part in parts:
            if board is None or id(part) not in cells:
                part.note()

    @staticmethod
    def _together(parts: Sequence[Statistic]) -> bool:
        return len(parts) > 1 and not torch.compiler.is_compiling()

    def _bound(self, parts: Sequence[Statistic]) -> Tensor | None:
        """The tensor, in which all of `parts` have their numbers; None where they may not be moved there."""
        views = [part.state["clean"] for part in parts]
        if len(views) == len(self._views) and all(a is b for a, b in zip(views, self._views, strict=True)):
            return self._cells
        if is_capturing(parts[0].device):  # a graph goes on writing to where they are
            return None
        with torch.inference_mode(False):
            cells = torch.cat([view.clone() if view.dim() else view.expand(1, 2) for view in views])
        at, self._cells, self._views = 0, cells, []
        for part, view in zip(parts, views, strict=True):
            place = cells[at : at + len(view)] if view.dim() else cells[at, 0]
            part.state["clean"] = place
            self._views.append(place)
            at += len(view) if view.dim() else 1
        return cells

    def __reduce__(self) -> Any:
        return Board, ()
