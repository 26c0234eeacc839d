"""States that metrics are computed from: sums or extremes over updates, kept in place on the device."""

from __future__ import annotations

import copy
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics.batch import Batch, is_capturing, move_to_device
from gapless.metrics.breadth import Breadth, SizeMismatch, describe_sizes
from gapless.torch_internals import foreach_zero

State = dict[str, Tensor]


@dataclass(frozen=True)
class Slot:
    """One tensor of a statistic's state.

    Args:
        shape: its shape.
        dtype: its dtype, whatever the model is cast to.
        initial: the value of all elements before the first update.
        reduction: how the slots of two states are merged: ``"sum"``, ``"max"``, ``"min"``, or ``"fold"`` for
            the statistic's own :meth:`Statistic.merge_folded`.

    >>> Slot((2,), torch.float64).allocate(torch.device("cpu"))
    tensor([0., 0.], dtype=torch.float64)
    """

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.int64
    initial: float = 0
    reduction: str = "sum"

    def allocate(self, device: torch.device) -> Tensor:
        return torch.full(self.shape, self.initial, dtype=storable(self.dtype, device), device=device)


def storable(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return `dtype`, or the widest float that `device` supports in its place."""
    return torch.float32 if dtype == torch.float64 and device.type == "mps" else dtype


EMPTY_STATE = 0
"""The id of every state without data."""
_state_ids = itertools.count(EMPTY_STATE + 1)


def new_state_id() -> int:
    """Return an id that no other state has."""
    return next(_state_ids)


LIVE: weakref.WeakSet[Statistic] = weakref.WeakSet()
"""Every statistic in this process."""
GONE: list[Statistic] = []
"""Statistics of deleted metrics that may have bad values that were not reported."""


class ReportedCounts:
    """How many bad values were reported to the user since a reset: of this process, and of others."""

    def __init__(self) -> None:
        self.count = 0
        self.elsewhere = 0


class Statistic:
    """State that one or more metrics are computed from.

    A subclass adds a batch to ``self.state`` in :meth:`count`, with in-place operations and without reading a
    value. Statistics of the same class and `config` are interchangeable: a collection keeps one of them.

    Args:
        config: hashable values that determine what is counted.
        slots: the tensors of the state, by name; a slot ``"strange"`` counts bad values.
        checked: whether bad values are reported.

    >>> class Largest(Statistic):
    ...     def __init__(self):
    ...         slot = Slot((), torch.float32, -math.inf, "max")
    ...         super().__init__((), {"value": slot}, checked=False)
    ...
    ...     def count(self, batch):
    ...         value = self.state["value"]
    ...         torch.maximum(value, batch.args[0].max(), out=value)
    >>> first, second = Largest(), Largest()
    >>> first.count(Batch((torch.tensor([1.0, 4.0]),), first.device))
    >>> second.count(Batch((torch.tensor([9.0]),), second.device))
    >>> first.absorb(second)
    >>> first.state["value"]
    tensor(9.)
    """

    severity = "error"
    graph = False
    """Whether the state is that of one batch, and gradients may be taken of results from it."""
    gathers = False
    """Whether :meth:`from_processes` runs a collective itself."""
    constants: Mapping[str, int | Tensor] = MappingProxyType({})
    """Constants that operators need as tensors on the device: integers or CPU tensors; set as attributes."""

    names: tuple[str, ...] = ()
    """The metrics, or the function, that are computed from it."""
    silent = False
    """Whether another statistic reports its bad values."""

    twins = False
    """Whether the state depends on the arguments of updates only: see `gapless.metrics.twins`."""
    derived: dict[str, Any] | None = None
    """While a collection computes: the values derived from the state so far, for all its members."""
    readers: Sequence[Any] = ()
    """While a collection computes: those members."""
    noted = False
    """Whether :meth:`count` has done the work of :meth:`note` already."""
    errors_elsewhere: Tensor | None = None
    """Bad values of other processes at the last reduction; None if bad values are not errors."""
    replayed = False
    """Whether updates may run without Python, in a CUDA graph or in compiled code."""

    breadth: Breadth = Breadth()
    """What there is a value for each of."""

    clean: ClassVar[Slot] = Slot()
    """How many updates came before the first bad value, for each of :meth:`fault_cells`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Statistic:
        statistic = super().__new__(cls)
        LIVE.add(statistic)
        return statistic

    def __init__(self, config: tuple[Any, ...], slots: dict[str, Slot], checked: bool = True) -> None:
        self.key = (type(self), *config)
        self.checked = checked
        self.slots = {**slots, "clean": self.clean}
        self.device = torch.get_default_device()
        self.state: State = self._allocate()
        self._make_constants()
        self.reported = ReportedCounts()
        self._whole: State | None = None
        self.set_state_id(EMPTY_STATE)
        self._scratch: State | None = None

    def __del__(self) -> None:
        if not sys.is_finalizing() and self.may_have_unreported_faults():
            # Keep only what records bad values: no rows, and no second state.
            self.state = self.fault_state(self.state if self._whole is None else self._whole)
            self._scratch = self._whole = None
            GONE.append(self)

    # What a subclass says.

    def count(self, batch: Batch) -> None:
        """Add `batch` to ``self.state``."""
        raise NotImplementedError

    def faults(self) -> Tensor | None:
        """Return the number of bad values in ``self.state`` as a 0-dim tensor; None if none are looked for.

        By default it is the slot ``"strange"``, if there is one.
        """
        return self.state.get("strange")

    def fault_cells(self) -> Tensor | None:
        """Return numbers that are 0 until a bad value is met: 0-dim, or ``(n, 2)``."""
        return self.faults()

    def faults_on_host(self) -> int:
        """Return the number of bad values as an integer, for a state on the CPU."""
        faults = self.faults()
        return 0 if faults is None else int(faults.item())

    def complaint(self, count: int) -> str:
        """Return the message about `count` bad values."""
        return f"met {count} bad value{'s' * (count != 1)}"

    def complaint_about(self, batch: Batch, count: int) -> str:
        """Return the message about `count` bad values of `batch`, a CPU batch, whose values may be read."""
        return self.complaint(count)

    def fault_state(self, state: State) -> State:
        """Return the entries of `state` that record bad values."""
        return {name: state[name] for name in self.slots}

    def fault_tensors(self) -> list[Tensor]:
        """Return the tensors that are written to when a bad value is met."""
        return [self.state[name] for name in self.slots]

    def capacity_note(self) -> str:
        """Return what to add to a message if rows beyond a capacity may have been left out."""
        return ""

    def merge(self, into: State, other: State) -> None:
        """Merge the state `other` into the state `into`, in place."""
        folded = False
        for name, slot in self.slots.items():
            if slot.reduction == "fold":
                folded = True
            elif name != "clean":
                IN_PLACE_REDUCTIONS[slot.reduction](into[name], other[name])
        if folded:
            self.merge_folded(into, other)

    # What the metrics call.

    def may_have_unreported_faults(self) -> bool:
        """Whether there may be bad values that were not reported; without reading the device."""
        held = self.__dict__
        return (
            not self.silent
            and held.get("checked", False)
            and "reported" in held
            and self.device.type != "cpu"
        )

    def silent_copy(self) -> Statistic:
        """Return a temporary copy, whose bad values this statistic reports."""
        duplicate = copy.deepcopy(self)
        duplicate.silent = True
        return duplicate

    @property
    def state_id(self) -> int:
        """A number that identifies the data in the state: equal only for states with the same data."""
        return self._state_id if self._versions == self._tensor_versions() else new_state_id()

    def set_state_id(self, state_id: int) -> None:
        """Record that the state now holds the data identified by `state_id`."""
        self._state_id, self._versions = state_id, self._tensor_versions()

    def _tensor_versions(self) -> tuple[int, ...]:
        """Return how often each slot has been written to; empty if ids are not used."""
        return tuple(value._version for value in self.state.values()) if self.twins else ()

    def note(self) -> None:
        """Count on the device, in ``"clean"``, whether all updates so far were free of bad values."""
        if torch.compiler.is_compiling() or is_capturing(self.device):
            self.replayed = True
        if self.noted:
            self.noted = False
            return
        cells = self.fault_cells() if self.checked else None
        if cells is not None:
            self.state["clean"].add_(cells == 0)

    def fault_pieces(self) -> list[Tensor] | None:
        """Return the device tensors that :meth:`read_faults` needs; None if nothing is checked."""
        cells = self.fault_cells() if self.checked else None
        return None if cells is None else [cells, self.state["clean"]]

    def read_faults(self, pieces: Sequence[Tensor]) -> tuple[int, int]:
        """Return the numbers of bad values and of updates before the first, from `pieces` on the CPU."""
        return int(pieces[0].item()), int(pieces[-1].min().item())

    def reset(self, cleared: bool = False) -> None:
        """Set the state to that before the first update, in the same storage.

        `cleared` says that the tensors have their initial values already.
        """
        if not cleared:
            self._clear(self.state)
        self.reported = ReportedCounts()
        self.errors_elsewhere = None
        self.set_state_id(EMPTY_STATE)

    def _clear(self, state: State) -> None:
        for name, slot in self.slots.items():
            if slot.initial == 0:
                state[name].zero_()
            else:
                state[name].fill_(slot.initial)

    @property
    def in_batch(self) -> bool:
        """Whether the state is that of one batch, not added to the rest yet."""
        return self._whole is not None

    def begin_batch(self, graph: bool = False) -> None:
        """Start a batch: until :meth:`end_batch`, updates and readings concern that batch only.

        With `graph`, gradients may be taken of readings: the batch has a state that is not reused.
        """
        if graph or self._scratch is None:
            self._scratch = self._allocate()
        else:
            self._clear(self._scratch)
        self.graph = graph
        self._whole, self.state = self.state, self._scratch

    def end_batch(self) -> None:
        """Add the batch to the rest."""
        if self._whole is None:
            return
        batch, self.state, self._whole = self.state, self._whole, None
        if self.graph:
            self.graph, self._scratch = False, None
            batch = {name: value.detach() for name, value in batch.items()}
        self.merge(self.state, batch)
        self.set_state_id(new_state_id())
        self.noted = False
        self.note()

    def to(self, device: torch.device) -> None:
        """Move the state to `device`; dtypes are kept even if the surrounding module is cast."""
        if device == self.device:
            return
        state_id = self.state_id
        self.device = device
        self._make_constants()
        self.state = {
            name: move_to_device(value.to(storable(self.slots[name].dtype, device)), device)
            for name, value in self.state.items()
            if name in self.slots
        }
        self._scratch = None
        self.set_state_id(state_id)

    def derive(self, name: str, function: Callable[[], Any]) -> Any:
        """Return ``function()``, a value computed from the state; once per computation of a collection."""
        if self.derived is None:
            return function()
        if name not in self.derived:
            self.derived[name] = function()
        return self.derived[name]

    @property
    def saved_slots(self) -> dict[str, Slot]:
        """The slots as a checkpoint has them."""
        return self.slots

    def decode(self, state: State) -> State:
        """Return `state` as a checkpoint has it; slots may have additional leading dimensions."""
        return state

    def encode(self, saved: State) -> State:
        """Return the state of a checkpoint as this statistic keeps it."""
        return saved

    def saved_state(self) -> State:
        """Return the state that a checkpoint holds."""
        return self.decode(self.state)

    def saved_state_names(self) -> list[str]:
        """Return the keys of :meth:`saved_state`."""
        return list(self.saved_slots)

    def size_of(self, slot: str, shape: Sequence[int], own: Sequence[int]) -> str:
        """Return the size of a saved `slot` of this shape in words, such as ``3 classes``, where it has the
        shape `own` here; "" if only the shape is known.
        """
        return self.breadth.words(shape, own)

    def refuse_other_sizes(self, saved: Mapping[str, Tensor]) -> None:
        """Raise unless each slot in `saved` has the same shape here.

        Raises:
            SizeMismatch: a shape differs, so that adding or copying would fail or broadcast.
        """
        own = self.saved_state()
        for name in self.saved_slots:
            if name == "clean" or name not in saved or saved[name].shape == own[name].shape:
                continue
            raise self.mismatch(name, saved[name].shape, own[name].shape)

    def mismatch(self, slot: str, shape: Sequence[int], own: Sequence[int]) -> SizeMismatch:
        """Return the error for a saved `slot` of this shape where it has the shape `own` here."""
        sizes = [self.size_of(slot, each, own) for each in (shape, own)]
        if not all(sizes) or sizes[0] == sizes[1]:
            sizes = [f"shape {tuple(each)}" for each in (shape, own)]
        return SizeMismatch(f"size mismatch for {slot}: {describe_sizes(*sizes)}")

    def load(self, saved: State) -> None:
        """Copy a saved state into this statistic's storage.

        Raises:
            SizeMismatch: it is the state of a metric with other arguments.
        """
        self.refuse_other_sizes(saved)
        for name, value in self.encode(saved).items():
            self.state[name].copy_(value)
        self.set_state_id(new_state_id())

    def absorb(self, other: Statistic) -> None:
        """Merge `other`, the same statistic in another process or from another time, into this one.

        Raises:
            SizeMismatch: `other` belongs to a metric with other arguments.
        """
        self.refuse_other_sizes(other.saved_state())
        self.merge(self.state, other.state)
        self.set_state_id(new_state_id())

    def from_processes(self, state: State, group: Any) -> State:
        """Return the state over all processes; in `state`, slots to fold are stacked by process."""
        folded = [name for name, slot in self.slots.items() if slot.reduction == "fold"]
        if not folded:
            return state
        ranks = state[folded[0]].shape[0]
        first = {name: state[name][0].clone() for name in folded}
        for rank in range(1, ranks):
            self.merge_folded(first, {name: state[name][rank] for name in folded})
        return {**state, **first}

    def merge_folded(self, into: State, other: State) -> None:
        """Merge the slots to fold of `other` into those of `into`, in place; for statistics that have any."""
        raise NotImplementedError

    def _make_constants(self) -> None:
        with torch.inference_mode(False):
            for name, held in self.constants.items():
                if isinstance(held, Tensor):
                    setattr(
                        self, name, move_to_device(held.to(storable(held.dtype, self.device)), self.device)
                    )
                else:
                    setattr(self, name, torch.full((), held, dtype=torch.int64, device=self.device))

    def _allocate(self) -> State:
        with torch.inference_mode(False):
            return {name: slot.allocate(self.device) for name, slot in self.slots.items()}


def reset_together(parts: Iterable[Statistic]) -> None:
    """Reset statistics; on a CUDA device, one kernel zeroes all tensors of the same dtype."""
    statistics = list(parts)
    zeros: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    cleared = set()
    for part in statistics:
        if part.device.type != "cuda" or torch.compiler.is_compiling():
            continue
        cleared.add(id(part))
        for name, slot in part.slots.items():
            value = part.state[name]
            if slot.initial:
                value.fill_(slot.initial)
            elif value.dtype == torch.float64:  # whose 0 has the same bits as an integer's
                zeros.setdefault((value.device, torch.int64), []).append(value.view(torch.int64))
            else:
                zeros.setdefault((value.device, value.dtype), []).append(value)
    for values in zeros.values():
        foreach_zero(values)
    for part in statistics:
        part.reset(id(part) in cleared)


def swap_states(parts: Sequence[Statistic], states: Sequence[State]) -> list[State]:
    """Set the states of `parts` and return the previous ones."""
    before = [part.state for part in parts]
    for part, state in zip(parts, states, strict=True):
        part.state = state
    return before


def _in_place(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Any]:
    """Return a function that reduces two tensors into the first."""

    def reduce(into: Tensor, other: Tensor) -> None:
        function(into, other, out=into)

    return reduce


IN_PLACE_REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sum": Tensor.add_,
    "max": _in_place(torch.maximum),
    "min": _in_place(torch.minimum),
}
"""Merge the second tensor into the first, by reduction."""
LOWEST, HIGHEST = -math.inf, math.inf
