"""Statistics that keep every row, in storage that doubles or has a fixed size."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gapless.metrics import distributed
from gapless.metrics.batch import move_to_device
from gapless.metrics.statistic import Slot, State, Statistic

Column = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a row."""
INITIAL_ROWS = 256
"""Rows in the first allocation without a capacity: enough for small data, small in memory."""

_CAPTURE_ERROR = (
    "this metric keeps every row and counts rows on the CPU, which CUDA graph replays do not repeat: give "
    "it a `capacity`, or update it outside the replay"
)

POSITION_SLOTS = ("length", "start")
"""Slots with the range of rows that count."""


class RowState(dict[str, Tensor]):
    """A state with columns of rows; rows from `start` to `length` count."""

    start = 0
    length = 0
    examined = 0
    """Rows already checked for bad values, if :class:`~gapless.metrics.later.CheckedLater` checks them."""
    ends: Any = ()
    """Where the rows of each update since then end."""
    with_graph: Mapping[str, Tensor] = MappingProxyType({})
    """The rows of a batch, by column, if gradients may be taken of them."""


class Rows(Statistic):
    """Rows of several columns.

    Without a capacity, the host counts the rows (their number is a shape, so nothing is read) and storage
    doubles when full. With a capacity, the device counts: storage is fixed, further rows are left out and
    counted as faults, and reads return the whole capacity with a mask of valid rows.

    `columns` gives shape and dtype of a row, or None if the first batch decides. A subclass counts bad rows
    in the slot ``"strange"``.
    """

    gathers = True

    def __init__(
        self,
        config: tuple[Any, ...],
        columns: Mapping[str, Column | None],
        capacity: int | None = None,
        checked: bool = True,
        slots: dict[str, Slot] | None = None,
    ) -> None:
        if capacity is not None and (not isinstance(capacity, int) or capacity < 1):
            raise ValueError(
                f"Expected argument `capacity` to be `None` or a positive integer, but got {capacity}"
            )
        self.columns = columns
        self.capacity = capacity
        fixed = {"length": Slot(), "start": Slot()} if capacity is not None else {}
        super().__init__((*config, capacity), {"strange": Slot(), **(slots or {}), **fixed}, checked)

    def append(self, **columns: Tensor) -> None:
        """Add rows: for each column a tensor ``(n, ...)`` with the same `n`.

        Raises:
            RuntimeError: a CUDA graph is being captured, and there is no capacity.
        """
        if self.capacity is None:
            self.refuse_capture()
        state, new = self._rows(), next(iter(columns.values())).shape[0]
        if self.graph:
            state.with_graph = columns
            columns = {name: value.detach() for name, value in columns.items()}
        if self.capacity is not None:
            self._append_fixed(state, new, columns)
            return
        end = state.length + new
        for name, value in columns.items():
            self._ensure_room(state, name, value, end)
            state[name][state.length : end].copy_(value)
        state.length = end

    def refuse_capture(self) -> None:
        """Raise RuntimeError if a CUDA graph is being captured, whose replays would count no rows on
        the host.
        """
        if torch.compiler.is_compiling() or self.device.type != "cuda":
            return
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(_CAPTURE_ERROR)

    def valid_rows(self, column: str) -> Tensor:
        """Return the valid rows of `column`; with a capacity, the host waits for their number."""
        rows, mask = self.read(column), self.valid_mask()
        return rows if mask is None else rows[mask]

    def read(self, column: str) -> Tensor:
        """Return the rows of `column`; with a capacity, all of its rows, valid or not."""
        state = self._rows()
        if column in state.with_graph:
            return state.with_graph[column]
        if column not in state:
            return torch.zeros(self.capacity or 0, device=self.device)
        if self.capacity is None:
            return state[column][state.start : state.length]
        return state[column][: state.length] if state.length else state[column][:-1]

    def require_rows(self) -> None:
        """Raise ValueError if the host knows that there are no rows."""
        if self.capacity is None and not self._rows().length:
            raise ValueError("No samples to concatenate")

    def valid_mask(self) -> Tensor | None:
        """Return which rows of :meth:`read` are valid; None if all are."""
        if self.capacity is None or self._rows().with_graph:
            return None
        if "mask" in self.state:
            return self.state["mask"]
        position = torch.arange(self.capacity, device=self.device)
        return (position >= self.state["start"]) & (position < self.state["length"])

    def faults(self) -> Tensor:
        strange = self.state["strange"]
        return (
            strange
            if self.capacity is None
            else strange + (self.state["length"] - self.capacity).clamp(min=0)
        )

    def capacity_note(self) -> str:
        return "" if self.capacity is None else f", or rows beyond the capacity of {self.capacity}, left out"

    def complaint(self, count: int) -> str:
        return f"Dropped {count} row{'s' * (count != 1)} beyond the capacity of {self.capacity}"

    def reset(self, cleared: bool = False) -> None:
        super().reset(cleared)
        self._rows().length = 0

    def begin_batch(self, graph: bool = False) -> None:
        self.graph = graph
        state = self._rows()
        state.start = state.length
        if self.capacity is not None:
            state["start"].copy_(state["length"])

    def end_batch(self) -> None:
        state = self._rows()
        self.graph, state.with_graph, state.start = False, {}, 0
        if self.capacity is not None:
            self.state["start"].zero_()

    def to(self, device: torch.device) -> None:
        before = self._rows()
        columns = {name: before[name] for name in self.columns if name in before}
        super().to(device)
        after = RowState(self.state)
        after.start, after.length = before.start, before.length
        after.update({name: move_to_device(value, device) for name, value in columns.items()})
        self.state = after

    def saved_state(self) -> dict[str, Tensor]:
        columns = {name: self.read(name) for name in self.columns if name in self.state}
        return {**{name: self.state[name] for name in self.slots}, **columns}

    def saved_state_names(self) -> list[str]:
        return [*self.slots, *self.columns]

    def refuse_other_sizes(self, saved: Mapping[str, Tensor]) -> None:
        super().refuse_other_sizes(saved)
        for name, column in self.columns.items():
            if column is None or name not in saved or not len(saved[name]):
                continue
            row, own = tuple(saved[name].shape[1:]), tuple(column[0])
            if row != own:
                raise self.mismatch(name, row, own)

    def load(self, saved: dict[str, Tensor]) -> None:
        self.refuse_other_sizes(saved)
        super().load({name: saved[name] for name in self.slots})
        state = self._rows()
        state.length = 0
        for name in self.columns:
            if name not in saved:  # The checkpoint was saved before the first row.
                continue
            value = saved[name].to(self.device)
            if self.capacity is None:
                state.length = 0
                self._ensure_room(state, name, value, len(value))
                state[name][: len(value)].copy_(value)
                state.length = len(value)
            else:
                self._fixed_column(state, name, value)[: len(value)].copy_(value)

    def replace(self, column: str, rows: Tensor | None) -> None:
        """Replace the rows of `column`, without a capacity; None removes them.

        All columns have to be replaced: the number of rows is that of the last one.
        """
        if self.capacity is not None:
            raise ValueError("Rows in storage of a fixed `capacity` cannot be replaced from outside")
        state = self._rows()
        state.start = state.length = 0
        if rows is not None:
            self._ensure_room(state, column, rows, len(rows))
            state[column][: len(rows)].copy_(rows)
            state.length = len(rows)

    def absorb(self, other: Statistic) -> None:
        assert isinstance(other, Rows)
        before = {name: self.state[name].clone() for name in POSITION_SLOTS if name in self.slots}
        super().absorb(other)
        for name, value in before.items():
            self.state[name].copy_(value)
        if any(name in other.state for name in self.columns):
            self.append(**{name: other.valid_rows(name) for name in self.columns})
        if self.capacity is not None:
            # Rows that `other` left out are left out here too.
            self.state["length"].add_((other.state["length"] - self.capacity).clamp(min=0))

    def from_processes(self, state: State, group: Any) -> State:
        mine, whole = self._rows(), RowState(super().from_processes(state, group))
        carrier = distributed.carrier_device(group) or self.device
        if self.capacity is None:
            nothing = torch.zeros(0, device=self.device)
            own = [mine[name][: mine.length] if name in mine else nothing for name in self.columns]
            rows_by_column = distributed.gather_tensors(own, [False] * len(own), carrier, group)
            for name, ranks in zip(self.columns, rows_by_column, strict=True):
                # A process without rows learns the shape and the dtype of the others'.
                whole[name] = torch.cat([part for part in ranks if len(part)] or ranks[:1])
                whole.length = len(whole[name])
            return whole
        for name in self.columns:
            rows = distributed.gather(move_to_device(self.read(name), carrier), group)
            whole[name] = move_to_device(rows.flatten(0, 1), self.device)
        mask = self.valid_mask()
        assert mask is not None
        masks = distributed.gather(move_to_device(mask.to(torch.uint8), carrier), group)
        whole["mask"] = move_to_device(masks.flatten().bool(), self.device)
        whole.length = len(whole["mask"])
        return whole

    def _rows(self) -> RowState:
        assert isinstance(self.state, RowState)
        return self.state

    def _allocate(self) -> State:
        state = RowState(super()._allocate())
        for name, column in self.columns.items():
            if self.capacity is not None and column is not None:
                with torch.inference_mode(False):
                    shape = (self.capacity + 1, *column[0])
                    state[name] = torch.zeros(shape, dtype=column[1], device=self.device)
        return state

    def _ensure_room(self, state: RowState, name: str, like: Tensor | Column, rows: int) -> None:
        """Grow the storage of column `name` to hold at least `rows` rows."""
        held = state.get(name)
        if held is not None and rows <= held.shape[0]:
            return
        shape, dtype = (like.shape[1:], like.dtype) if isinstance(like, Tensor) else like
        with torch.inference_mode(False):
            wide = torch.empty(
                (max(INITIAL_ROWS, 2 * rows), *shape),
                dtype=dtype if held is None else held.dtype,
                device=self.device,
            )
            if held is not None:
                wide[: state.length].copy_(held[: state.length])
        state[name] = wide

    def _fixed_column(self, state: RowState, name: str, like: Tensor) -> Tensor:
        """Return the fixed storage of column `name`, allocated on first use; its last row is a dump."""
        assert self.capacity is not None
        if name not in state:
            with torch.inference_mode(False):
                shape = (self.capacity + 1, *like.shape[1:])
                state[name] = torch.zeros(shape, dtype=like.dtype, device=self.device)
        return state[name]

    def _append_fixed(self, state: RowState, new: int, columns: dict[str, Tensor]) -> None:
        """Add `new` rows at the device's position; those beyond the capacity overwrite the dump row."""
        at = torch.arange(new, device=self.device).add_(state["length"]).clamp_(max=self.capacity)
        for name, value in columns.items():
            rows = self._fixed_column(state, name, value)
            rows.index_copy_(0, at, value.to(rows.dtype))
        state["length"].add_(new)
