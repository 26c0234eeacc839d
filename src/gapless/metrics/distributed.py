"""Reduce states over processes: one collective per kind of reduction and dtype, for all statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gapless.metrics.batch import move_to_device
from gapless.metrics.packing import ALIGNMENT, decode_form, encode_form, form_of, pack, size_of, unpack
from gapless.metrics.sized import exchange_sizes
from gapless.metrics.statistic import State, Statistic

SlotAddress = tuple[int, str]
"""Index of a statistic, and the name of one of its slots."""
_ERROR_COUNT = "errors of this process"
"""Key beside the slot names: the number of bad values that a statistic has met in this process."""


def is_available() -> bool:
    """Whether ``torch.distributed`` is initialized."""
    return dist.is_available() and dist.is_initialized()


def reduce(statistics: Sequence[Statistic], group: Any = None) -> list[State]:
    """Return the states of `statistics` reduced over `group`: a group, a one-dimensional mesh, or None for
    all.

    Local states are not changed. Every process must call this, with or without data. Values are sent from a
    device that the group's backend supports, wherever the states are.
    """
    return StateReduction(statistics, group, async_op=False).states()


class StateReduction:
    """A reduction of states over the processes of `group`.

    With `async_op` the collectives are started without waiting for them. Statistics that keep rows are
    gathered at once all the same, because shapes have to be exchanged first.
    """

    def __init__(self, statistics: Sequence[Statistic], group: Any, async_op: bool) -> None:
        self.statistics = statistics
        self.group = process_group_of(group)
        self._carrier = carrier_device(self.group)
        exchange_sizes(statistics, self.group, self._carrier)
        self._states = [{name: part.state[name].detach() for name in part.slots} for part in statistics]
        self.elsewhere: dict[Statistic, Tensor] = {}
        """Bad values met by other processes, for statistics that treat them as errors; set once reduced."""
        self._pending: list[PendingCollective] = []
        whole = [i for i, part in enumerate(statistics) if part.gathers and async_op]
        at_once = StateReduction([statistics[i] for i in whole], group, async_op=False) if whole else None
        gathered = [] if at_once is None else at_once.states()
        self.elsewhere.update({} if at_once is None else at_once.elsewhere)
        self._gathered = dict(zip(whole, gathered, strict=True))
        self._local_errors = self._count_errors()
        for reduction, places in slots_by_reduction(statistics).items():
            if reduction == "sum":
                places = places + [(i, _ERROR_COUNT) for i in self._local_errors]
            places = [place for place in places if place[0] not in self._gathered]
            if places:
                self._send(reduction, places, async_op)

    def _count_errors(self) -> dict[int, Tensor]:
        """Add the number of bad values of each statistic that treats them as errors to the summed slots.

        Statistics without sums are skipped: they would need an additional collective.
        """
        counts = {}
        for i, part in enumerate(self.statistics):
            summed = any(slot.reduction == "sum" for name, slot in part.slots.items() if name != "clean")
            if part.checked and part.severity == "error" and summed and not part.in_batch:
                faults = part.faults()
                if faults is not None and i not in self._gathered:
                    counts[i] = self._states[i][_ERROR_COUNT] = faults.detach().to(torch.int64).clone()
        return counts

    def _send(self, reduction: str, places: list[SlotAddress], async_op: bool) -> None:
        parts = [self._states[i][name] for i, name in places]
        value = move_to_device(flatten(parts), self._carrier or parts[0].device)
        if reduction == "fold":
            into, work = gather_into(value, self.group, async_op)
        else:
            into = value
            work = dist.all_reduce(into, op=OPERATIONS[reduction], group=self.group, async_op=async_op)
        self._pending.append(PendingCollective(places, parts, into, work, reduction == "fold"))

    def ready(self) -> bool:
        """Whether all collectives have completed; does not wait."""
        return all(pending.work is None or pending.work.is_completed() for pending in self._pending)

    def states(self) -> list[State]:
        """Return the reduced states. **This waits** if an asynchronous reduction has not completed."""
        for pending in self._pending:
            if pending.work is not None:
                pending.work.wait()
            reduced = move_to_device(pending.into, pending.parts[0].device)
            pieces = split_rows(reduced, pending.parts) if pending.rows else split(reduced, pending.parts)
            for (i, name), piece, part in zip(pending.places, pieces, pending.parts, strict=True):
                self._states[i][name] = piece.to(part.dtype)
        self._pending = []
        for i, count in self._local_errors.items():
            self.elsewhere[self.statistics[i]] = self._states[i].pop(_ERROR_COUNT) - count
        self._local_errors = {}
        return [
            self._gathered[i] if i in self._gathered else part.from_processes(state, self.group)
            for i, (part, state) in enumerate(zip(self.statistics, self._states, strict=True))
        ]


class PendingCollective(NamedTuple):
    """A collective that was started, and the slots it carries."""

    places: list[SlotAddress]
    parts: list[Tensor]
    into: Tensor
    work: Any
    rows: bool
    """Whether the result has a row per process."""


def slots_by_reduction(statistics: Sequence[Statistic]) -> dict[str, list[SlotAddress]]:
    """Return the slots of all statistics by reduction, without ``"clean"``, which stays local."""
    slots: dict[str, list[SlotAddress]] = {}
    for i, statistic in enumerate(statistics):
        for name, slot in statistic.slots.items():
            if name != "clean":
                slots.setdefault(slot.reduction, []).append((i, name))
    return slots


def flatten(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate `parts` in one dimension. Integers among floats become float64, exact up to 2**53."""
    dtypes = {part.dtype for part in parts}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float64
    return torch.cat([part.reshape(-1).to(dtype) for part in parts])


def gather(value: Tensor, group: Any) -> Tensor:
    """Return `value` of every process: ``[ranks, *value.shape]``."""
    return gather_into(value, group, async_op=False)[0]


def gather_into(value: Tensor, group: Any, async_op: bool) -> tuple[Tensor, Any]:
    """Start gathering `value`; return ``[ranks, *value.shape]`` and the work to wait for (None: complete)."""
    ranks = dist.get_world_size(group)
    into = value.new_empty((ranks, *value.shape))
    flat = into.view(ranks * value.shape[0], *value.shape[1:])
    # The older name is deprecated in versions that have the newer one.
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    return into, getattr(dist, name)(flat, value, group=group, async_op=async_op)


def gather_tensors(
    values: Sequence[Tensor], is_form_shared: Sequence[bool], carrier: Any, group: Any
) -> list[list[Tensor]]:
    """Gather each of `values`, all on one device, from every process by way of the device `carrier`.

    All are sent together as bytes. Where shape and dtype may differ between processes (`is_form_shared` is
    false), they are exchanged first, and **the host waits** for them.
    """
    home = values[0].device
    forms = [[form_of(value) for value in values] for _ in range(dist.get_world_size(group))]
    variable = [i for i, same in enumerate(is_form_shared) if not same]
    if variable:
        mine = torch.tensor([encode_form(forms[0][i]) for i in variable], device="cpu")
        for of_rank, forms_of_rank in zip(
            forms, gather(move_to_device(mine, carrier), group).tolist(), strict=True
        ):
            for i, numbers in zip(variable, forms_of_rank, strict=True):
                of_rank[i] = decode_form(numbers)
    size = max(ALIGNMENT, *(size_of(of_rank) for of_rank in forms))
    sent = move_to_device(pack(values, size), carrier)
    rows = move_to_device(gather(sent, group), home)
    tensors_by_rank = [unpack(row, of_rank) for row, of_rank in zip(rows, forms, strict=True)]
    return [list(ranks) for ranks in zip(*tensors_by_rank, strict=True)]


def gather_tensor_lists(
    values: Sequence[Sequence[Tensor]], device: torch.device, group: Any
) -> list[list[list[Tensor]]]:
    """Gather lists of tensors, which may differ in length and shape between processes, to `device`.

    Returns for each of `values` the list of every process. All are sent together as bytes after their shapes
    were exchanged. **The host waits** for both.
    """
    forms: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(
        forms, [[form_of(tensor) for tensor in tensors] for tensors in values], group=group
    )
    flat = [[form for tensors in of_rank for form in tensors] for of_rank in forms]
    carrier = carrier_device(group) or device
    mine = [move_to_device(tensor.detach(), carrier) for tensors in values for tensor in tensors]
    size = max(ALIGNMENT, *(size_of(of_rank) for of_rank in flat))
    rows = move_to_device(gather(move_to_device(pack(mine, size), carrier), group), device)
    tensors_by_rank = [iter(unpack(row, of_rank)) for row, of_rank in zip(rows, flat, strict=True)]
    return [
        [[next(tensors) for _ in of_rank[i]] for of_rank, tensors in zip(forms, tensors_by_rank, strict=True)]
        for i in range(len(values))
    ]


def reduce_with(gather: Callable[..., Any], statistic: Statistic, group: Any) -> State:
    """Return the state over all processes that ``gather(tensor, group=group)`` reaches."""
    saved = {name: value for name, value in statistic.saved_state().items() if name != "clean"}
    answers = {name: list(gather(value, group=group)) for name, value in saved.items()}
    total: Statistic | None = None
    for values in zip(*answers.values(), strict=True):
        received = statistic.silent_copy()
        received.reset()
        received.load({"clean": statistic.state["clean"], **dict(zip(answers, values, strict=True))})
        if total is None:
            total = received
        else:
            total.absorb(received)
    return statistic.state if total is None else total.state


def split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split `flat` into tensors of the shapes of `like`."""
    pieces = torch.split(flat, [part.numel() for part in like])
    return [piece.view(part.shape) for piece, part in zip(pieces, like, strict=True)]


def split_rows(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split each row of `flat` into tensors of the shapes of `like`: ``[rows, *shape]`` each."""
    pieces = torch.split(flat, [part.numel() for part in like], dim=1)
    return [piece.reshape(flat.shape[0], *part.shape) for piece, part in zip(pieces, like, strict=True)]


def process_group_of(group: Any) -> Any:
    """Return the process group of a device mesh; a group is returned unchanged."""
    return group.get_group() if hasattr(group, "get_group") else group


def carrier_device(group: Any) -> torch.device | None:
    """Return the only device that the group's backend supports, or None if it supports any."""
    if str(dist.get_backend(group)).lower() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if str(dist.get_backend(group)).lower() == "gloo" else None


OPERATIONS = (
    {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
    if (dist.is_available())
    else {}
)
"""The operation of each reduction; empty where torch lacks ``torch.distributed``."""
