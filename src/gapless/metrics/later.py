"""Rows whose bad values are looked for when somebody wants to know of them, not in each update."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gapless.metrics.batch import moved
from gapless.metrics.rows import Column, Rows, RowState
from gapless.metrics.statistic import State, Statistic


class CheckedLater(Rows):
    """Rows that say themselves what was wrong with them.

    On a GPU, where no capacity is given, updates check nothing: rows are examined, all of them together and
    in a few kernels, when results are computed or read, or bad values asked for. Elsewhere :meth:`count`
    counts them into the slot ``"strange"``, and appends the rows.
    """

    examined_by = ""
    """The column that tells."""

    def strange_rows(self, state: RowState) -> Tensor:
        """Which of the rows from `state.examined` on are bad: of bool, with a row for each."""
        raise NotImplementedError

    def later(self, rows: int) -> bool:
        """Whether so many rows are to be written by :meth:`reserve`, and examined later."""
        if self.capacity is not None or self.graph or self.device.type != "cuda" or not rows:
            return False
        return not torch.compiler.is_compiling()

    def reserve(self, rows: int, columns: Mapping[str, Column]) -> list[Tensor]:
        """For each of the `columns` a tensor in which to write so many more rows, which count from here on.

        Raises:
            RuntimeError: a CUDA graph is captured.
        """
        self.refuse_capture()
        state = self._rows()
        begin, end = state.length, state.length + rows
        for name, column in columns.items():
            self._room(state, name, column, end)
        state.length = end
        if not state.ends:
            state.ends = []
        state.ends.append(end)
        self.noted = True
        return [state[name][begin:end] for name in columns]

    def watched(self) -> list[Tensor]:
        column = self.state.get(self.examined_by)
        return super().watched() + ([] if column is None else [column])

    def settle_rows(self) -> None:
        """Examine the rows that nobody has examined yet."""
        state = self._rows()
        if state.examined == state.length:
            return
        if self.checked and state.ends:
            bad = self.strange_rows(state)
            width = bad[0].numel()
            bad = bad.flatten().cumsum(0)
            ends = torch.tensor(state.ends, device="cpu").sub_(state.examined).mul_(width).sub_(1)
            before = bad[moved(ends, bad.device)].add_(state["strange"])
            state["clean"].add_((before == 0).sum())
            state["strange"].add_(bad[-1])
        self._settled()

    def _settled(self) -> None:
        """What is wrong with the rows that there are is in the slots."""
        state = self._rows()
        state.examined, state.ends = state.length, ()

    def faults(self) -> Tensor:
        self.settle_rows()
        return super().faults()

    def append(self, **columns: Tensor) -> None:
        self.settle_rows()
        super().append(**columns)
        self._settled()

    def absorb(self, other: Statistic) -> None:
        assert isinstance(other, CheckedLater)
        other.settle_rows()
        super().absorb(other)

    def saved(self) -> State:
        self.settle_rows()
        return super().saved()

    def load(self, saved: State) -> None:
        super().load(saved)
        self._settled()

    def replace(self, column: str, rows: Tensor | None) -> None:
        super().replace(column, rows)
        self._settled()

    def reset(self, cleared: bool = False) -> None:
        super().reset(cleared)
        self._settled()

    def to(self, device: torch.device) -> None:
        self.settle_rows()
        super().to(device)
        self._settled()

    def remains(self, state: State) -> State:
        assert isinstance(state, RowState)
        found = RowState(super().remains(state))
        if state.examined < state.length:
            found[self.examined_by] = state[self.examined_by]
        found.length, found.examined, found.ends = state.length, state.examined, state.ends
        return found
