"""What metrics are computed from: sums or extremes over the updates, kept in place on the device."""

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

from gapless.metrics.batch import Batch, is_capturing, moved
from gapless.torch_internals import foreach_zero

State = dict[str, Tensor]


@dataclass(frozen=True)
class Slot:
    """One tensor of a statistic's state.

    `reduction` says how the same slot of two states becomes one: ``"sum"``, ``"max"``, ``"min"``, or
    ``"fold"`` where the statistic's own :meth:`Statistic.merge_folded` knows.
    """

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.int64
    initial: float = 0
    reduction: str = "sum"

    def allocate(self, device: torch.device) -> Tensor:
        return torch.full(self.shape, self.initial, dtype=storable(self.dtype, device), device=device)


def storable(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """`dtype`, or the widest float that `device` has in its place."""
    return torch.float32 if dtype == torch.float64 and device.type == "mps" else dtype


EMPTY = 0
_pasts = itertools.count(EMPTY + 1)


def new_past() -> int:
    """A number for what no other state has counted."""
    return next(_pasts)


LIVE: weakref.WeakSet[Statistic] = weakref.WeakSet()
"""Every statistic that there is."""
GONE: list[Statistic] = []
"""Statistics whose metrics are gone, and which may have met bad values that nobody was told of."""


class SizeMismatch(ValueError):
    """A saved state is of another size than the state of the statistic that should take it."""


class Told:
    """How many bad values the user has been told about since a reset: of this process, and of others."""

    def __init__(self) -> None:
        self.count = 0
        self.elsewhere = 0


class Statistic:
    """State that one or more metrics are computed from.

    A subclass passes its configuration and its slots to ``__init__`` and adds a batch to ``self.state`` in
    :meth:`count`, with in-place operations and without reading a value. Two statistics with the same `key`
    are the same statistic: a collection keeps one of them.
    """

    severity = "error"
    graph = False
    """Whether the state is that of one batch, and gradients may be taken of what follows from it."""
    gathers = False
    """Whether :meth:`from_processes` is a collective operation itself."""
    constants: Mapping[str, int | Tensor] = MappingProxyType({})
    """What operators need as tensors of the device: integers, or tensors of the host.

    Each is an attribute.
    """

    names: tuple[str, ...] = ()
    """The metrics, or the function, that are computed from it."""
    silent = False
    """Whether it holds what another one tells of."""

    twins = False
    """Whether the state follows from the arguments of updates alone: see `gapless.metrics.twins`."""
    derived: dict[str, Any] | None = None
    """While a collection computes: what has been derived from the state so far, for all its members."""
    readers: Sequence[Any] = ()
    """Then: these members."""
    noted = False
    """Whether :meth:`count` has done what :meth:`note` does."""
    errors_elsewhere: Tensor | None = None
    """How many bad values other processes had met by the last reduction; None where none are errors."""
    replayed = False
    """Whether updates may come of which Python does not hear: in a CUDA graph, in compiled code."""

    clean: ClassVar[Slot] = Slot()
    """How many updates went well before the first bad value in each of :meth:`fault_cells`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Statistic:
        made = super().__new__(cls)
        LIVE.add(made)
        return made

    def __init__(self, config: tuple[Any, ...], slots: dict[str, Slot], checked: bool = True) -> None:
        self.key = (type(self), *config)
        self.checked = checked
        self.slots = {**slots, "clean": self.clean}
        self.device = torch.get_default_device()
        self.state: State = self._allocate()
        self._make_constants()
        self.told = Told()
        self._whole: State | None = None
        self.settle(EMPTY)
        self._scratch: State | None = None

    def __del__(self) -> None:
        if not sys.is_finalizing() and self.may_be_owed():
            # Only what bad values are told by is kept: no rows, and no second state.
            self.state = self.remains(self.state if self._whole is None else self._whole)
            self._scratch = self._whole = None
            GONE.append(self)

    # What a subclass says.

    def count(self, batch: Batch) -> None:
        """Add `batch` to ``self.state``."""
        raise NotImplementedError

    def faults(self) -> Tensor | None:
        """How many bad values ``self.state`` has met, as a tensor of no dimension: those in the slot
        ``"strange"``, where there is one; None where none are looked for.
        """
        return self.state.get("strange")

    def fault_cells(self) -> Tensor | None:
        """Numbers that are all 0 as long as no bad value was met: of no dimension, or ``(n, 2)``."""
        return self.faults()

    def faults_on_host(self) -> int:
        """The same as a number, for a state on the CPU."""
        faults = self.faults()
        return 0 if faults is None else int(faults.item())

    def complaint(self, count: int) -> str:
        """What to say about `count` bad values."""
        return f"met {count} bad value{'s' * (count != 1)}"

    def complaint_about(self, batch: Batch, count: int) -> str:
        """The same for those of `batch`, a batch on the CPU, into which one may look."""
        return self.complaint(count)

    def remains(self, state: State) -> State:
        """What of `state` bad values are told by."""
        return {name: state[name] for name in self.slots}

    def watched(self) -> list[Tensor]:
        """Tensors that are written to where bad values are met."""
        return [self.state[name] for name in self.slots]

    def full(self) -> str:
        """What to add to a complaint where something else may have been left out."""
        return ""

    def merge(self, into: State, other: State) -> None:
        """Add the state `other` to the state `into`, in place."""
        folded = False
        for name, slot in self.slots.items():
            if slot.reduction == "fold":
                folded = True
            elif name != "clean":
                REDUCE[slot.reduction](into[name], other[name])
        if folded:
            self.merge_folded(into, other)

    # What the metrics call.

    def may_be_owed(self) -> bool:
        """Whether there may be bad values of which the user was not told: looking is not free everywhere."""
        held = self.__dict__
        return not self.silent and held.get("checked", False) and "told" in held and self.device.type != "cpu"

    def silent_copy(self) -> Statistic:
        """A copy for a moment, whose bad values are told by this one."""
        made = copy.deepcopy(self)
        made.silent = True
        return made

    @property
    def past(self) -> int:
        """What is counted in the state, as a number that another state has only if it is the same one."""
        return self._past if self._versions == self._changes() else new_past()

    def settle(self, past: int) -> None:
        """What is counted in the state now is `past`."""
        self._past, self._versions = past, self._changes()

    def _changes(self) -> tuple[int, ...]:
        """How often each slot has been written to, if it matters."""
        return tuple(value._version for value in self.state.values()) if self.twins else ()

    def note(self) -> None:
        """Note on the device whether every update so far was free of bad values."""
        if torch.compiler.is_compiling() or is_capturing(self.device):
            self.replayed = True
        if self.noted:
            self.noted = False
            return
        cells = self.fault_cells() if self.checked else None
        if cells is not None:
            self.state["clean"].add_(cells == 0)

    def fault_pieces(self) -> list[Tensor] | None:
        """What :meth:`told_by` needs, on the device as it is; None where nothing is checked."""
        cells = self.fault_cells() if self.checked else None
        return None if cells is None else [cells, self.state["clean"]]

    def told_by(self, pieces: Sequence[Tensor]) -> tuple[int, int]:
        """How many bad values there were, and how many updates before the first, by pieces on the host."""
        return int(pieces[0].item()), int(pieces[-1].min().item())

    def reset(self, cleared: bool = False) -> None:
        """Back to the state before the first update, in the same storage, which may be `cleared` already."""
        if not cleared:
            self._clear(self.state)
        self.told = Told()
        self.errors_elsewhere = None
        self.settle(EMPTY)

    def _clear(self, state: State) -> None:
        for name, slot in self.slots.items():
            if slot.initial == 0:
                state[name].zero_()
            else:
                state[name].fill_(slot.initial)

    @property
    def in_batch(self) -> bool:
        """Whether the state is that of one batch only, which has not been added to the rest."""
        return self._whole is not None

    def begin_batch(self, graph: bool = False) -> None:
        """From here to :meth:`end_batch`, updates and readings concern one batch only.

        With `graph` gradients may be taken of readings: the batch has a state of its own, never used again.
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
        self.settle(new_past())
        self.noted = False
        self.note()

    def to(self, device: torch.device) -> None:
        """Move the state; dtypes stay, whatever the module around it is cast to."""
        if device == self.device:
            return
        past = self.past
        self.device = device
        self._make_constants()
        self.state = {
            name: moved(value.to(storable(self.slots[name].dtype, device)), device)
            for name, value in self.state.items()
            if name in self.slots
        }
        self._scratch = None
        self.settle(past)

    def derive(self, name: str, function: Callable[[], Any]) -> Any:
        """``function()``, which follows from the state; once where several metrics are computed together."""
        if self.derived is None:
            return function()
        if name not in self.derived:
            self.derived[name] = function()
        return self.derived[name]

    @property
    def saved_slots(self) -> dict[str, Slot]:
        """The slots as a checkpoint has them."""
        return self.slots

    def decoded(self, state: State) -> State:
        """A state as a checkpoint has it; slots may have more dimensions in front."""
        return state

    def encoded(self, saved: State) -> State:
        """A state from what a checkpoint has."""
        return saved

    def saved(self) -> State:
        """What a checkpoint holds."""
        return self.decoded(self.state)

    def saved_names(self) -> list[str]:
        """The keys of :meth:`saved`."""
        return list(self.saved_slots)

    def size_of(self, slot: str, shape: Sequence[int]) -> str:
        """Say in words for what a saved `slot` of this shape was made, ``3 classes``; "" where only the shape
        is known.
        """
        return ""

    def refuse_other_sizes(self, saved: Mapping[str, Tensor]) -> None:
        """Raise unless each slot in `saved` has the shape that it has here.

        Raises:
            SizeMismatch: one has another, so that adding or copying would fail or repeat its values.
        """
        own = self.saved()
        for name in self.saved_slots:
            if name == "clean" or name not in saved or saved[name].shape == own[name].shape:
                continue
            sizes = [(self.size_of(name, one.shape), tuple(one.shape)) for one in (saved[name], own[name])]
            worded = all(words for words, _ in sizes) and sizes[0][0] != sizes[1][0]
            before, now = (words if worded else f"shape {shape}" for words, shape in sizes)
            raise SizeMismatch(
                f"size mismatch for {name}: the saved state is for {before}, but this metric is for {now}: "
                "make it with the arguments that the other one was made with"
            )

    def load(self, saved: State) -> None:
        """Copy a saved state into this one's storage.

        Raises:
            SizeMismatch: it is the state of a metric with other arguments.
        """
        self.refuse_other_sizes(saved)
        for name, value in self.encoded(saved).items():
            self.state[name].copy_(value)
        self.settle(new_past())

    def absorb(self, other: Statistic) -> None:
        """Add what `other`, the same statistic in another process or at another time, has met.

        Raises:
            SizeMismatch: it is of a metric with other arguments.
        """
        self.refuse_other_sizes(other.saved())
        self.merge(self.state, other.state)
        self.settle(new_past())

    def from_processes(self, state: State, group: Any) -> State:
        """The state over all processes. Slots to fold come stacked, one process after the other."""
        folded = [name for name, slot in self.slots.items() if slot.reduction == "fold"]
        if not folded:
            return state
        ranks = state[folded[0]].shape[0]
        first = {name: state[name][0].clone() for name in folded}
        for rank in range(1, ranks):
            self.merge_folded(first, {name: state[name][rank] for name in folded})
        return {**state, **first}

    def merge_folded(self, into: State, other: State) -> None:
        """Add the slots to fold of `other` to those of `into`, in place; for statistics that have any."""
        raise NotImplementedError

    def _make_constants(self) -> None:
        with torch.inference_mode(False):
            for name, held in self.constants.items():
                if isinstance(held, Tensor):
                    setattr(self, name, moved(held.to(storable(held.dtype, self.device)), self.device))
                else:
                    setattr(self, name, torch.full((), held, dtype=torch.int64, device=self.device))

    def _allocate(self) -> State:
        with torch.inference_mode(False):
            return {name: slot.allocate(self.device) for name, slot in self.slots.items()}


def reset_together(parts: Iterable[Statistic]) -> None:
    """Reset statistics; those on a CUDA device with one kernel for each width of what becomes 0."""
    several = list(parts)
    zeros: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    cleared = set()
    for part in several:
        if part.device.type != "cuda" or torch.compiler.is_compiling():
            continue
        cleared.add(id(part))
        for name, slot in part.slots.items():
            value = part.state[name]
            if slot.initial:
                value.fill_(slot.initial)
            elif value.dtype == torch.float64:  # whose 0 is that of an integer
                zeros.setdefault((value.device, torch.int64), []).append(value.view(torch.int64))
            else:
                zeros.setdefault((value.device, value.dtype), []).append(value)
    for values in zeros.values():
        foreach_zero(values)
    for part in several:
        part.reset(id(part) in cleared)


def swap(parts: Sequence[Statistic], states: Sequence[State]) -> list[State]:
    """Give `parts` these states and return those they had."""
    before = [part.state for part in parts]
    for part, state in zip(parts, states, strict=True):
        part.state = state
    return before


def _extreme(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Any]:
    def reduce(into: Tensor, other: Tensor) -> None:
        function(into, other, out=into)

    return reduce


REDUCE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sum": Tensor.add_,
    "max": _extreme(torch.maximum),
    "min": _extreme(torch.minimum),
}
LOWEST, HIGHEST = -math.inf, math.inf
