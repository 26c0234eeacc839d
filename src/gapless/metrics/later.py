"""Rows whose bad values are looked for when results are read, not in each update."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gapless.metrics.batch import move_to_device
from gapless.metrics.rows import Column, Rows, RowState
from gapless.metrics.statistic import State, Statistic


class CheckedLater(Rows):
    """Rows from which bad values can be found later.

    On a GPU without capacity, updates check nothing: all rows are examined together, in a few kernels, when
    results or bad values are read. Elsewhere :meth:`count` counts bad values into the slot ``"strange"``.
    """

    examined_by = ""
    """The column in which bad values show."""

    def strange_rows(self, state: RowState) -> Tensor:
        """Return which rows from `state.examined` on are bad, as bool with a row for each."""
        raise NotImplementedError

    def later(self, rows: int) -> bool:
        """Whether a batch of `rows` rows is to be written with :meth:`reserve` and examined later."""
        if self.capacity is not None or self.graph or self.device.type != "cuda" or not rows:
            return False
        return not torch.compiler.is_compiling()

    def reserve(self, rows: int, columns: Mapping[str, Column]) -> list[Tensor]:
        """Return for each of the `columns` a tensor to write so many new rows into; they count from here on.

        Raises:
            RuntimeError: a CUDA graph is being captured.
        """
        self.refuse_capture()
        state = self._rows()
        begin, end = state.length, state.length + rows
        for name, column in columns.items():
            self._ensure_room(state, name, column, end)
        state.length = end
        if not state.ends:
            state.ends = []
        state.ends.append(end)
        self.noted = True
        return [state[name][begin:end] for name in columns]

    def fault_tensors(self) -> list[Tensor]:
        column = self.state.get(self.examined_by)
        return super().fault_tensors() + ([] if column is None else [column])

    def examine_rows(self) -> None:
        """Examine the rows that have not been examined yet, and count the bad ones."""
        state = self._rows()
        if state.examined == state.length:
            return
        if self.checked and state.ends:
            bad = self.strange_rows(state)
            width = bad[0].numel()
            bad = bad.flatten().cumsum(0)
            ends = torch.tensor(state.ends, device="cpu").sub_(state.examined).mul_(width).sub_(1)
            before = bad[move_to_device(ends, bad.device)].add_(state["strange"])
            state["clean"].add_((before == 0).sum())
            state["strange"].add_(bad[-1])
        self._mark_examined()

    def _mark_examined(self) -> None:
        """Mark all rows as examined."""
        state = self._rows()
        state.examined, state.ends = state.length, ()

    def faults(self) -> Tensor:
        self.examine_rows()
        return super().faults()

    def append(self, **columns: Tensor) -> None:
        self.examine_rows()
        super().append(**columns)
        self._mark_examined()

    def absorb(self, other: Statistic) -> None:
        assert isinstance(other, CheckedLater)
        other.examine_rows()
        super().absorb(other)

    def saved_state(self) -> State:
        self.examine_rows()
        return super().saved_state()

    def load(self, saved: State) -> None:
        super().load(saved)
        self._mark_examined()

    def replace(self, column: str, rows: Tensor | None) -> None:
        super().replace(column, rows)
        self._mark_examined()

    def reset(self, cleared: bool = False) -> None:
        super().reset(cleared)
        self._mark_examined()

    def to(self, device: torch.device) -> None:
        self.examine_rows()
        super().to(device)
        self._mark_examined()

    def fault_state(self, state: State) -> State:
        assert isinstance(state, RowState)
        kept = RowState(super().fault_state(state))
        if state.examined < state.length:
            kept[self.examined_by] = state[self.examined_by]
        kept.length, kept.examined, kept.ends = state.length, state.examined, state.ends
        return kept
