"""States over all processes: one collective per kind of reduction and dtype, for however many statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gapless.metrics.batch import moved
from gapless.metrics.packing import ALIGNED, form_of, packed, read, size_of, unpacked, written
from gapless.metrics.sized import exchange_sizes
from gapless.metrics.statistic import State, Statistic

Place = tuple[int, str]
_ERRORS = "errors of this process"
"""Beside the names of slots: how many bad values a statistic has met in one process."""


def available() -> bool:
    """Whether this process is one of several that can talk to each other."""
    return dist.is_available() and dist.is_initialized()


def reduce(statistics: Sequence[Statistic], group: Any = None) -> list[State]:
    """The states of `statistics` over the processes of `group`: a group, a one-dimensional mesh, or all.

    Local states stay as they are. Every process takes part, with data or without. The values travel on a
    device the group's backend can reach, wherever the states live.
    """
    return Reduction(statistics, group, async_op=False).states()


class Reduction:
    """States on their way through the processes of `group`.

    With `async_op` the collectives are started and nothing waits for them. What statistics keep row by row is
    gathered at once, since its shape has to be exchanged first.
    """

    def __init__(self, statistics: Sequence[Statistic], group: Any, async_op: bool) -> None:
        self.statistics = statistics
        self.group = as_group(group)
        self._carrier = carrier_device(self.group)
        exchange_sizes(statistics, self.group, self._carrier)
        self._states = [{name: part.state[name].detach() for name in part.slots} for part in statistics]
        self.elsewhere: dict[Statistic, Tensor] = {}
        """How many bad values other processes met, for statistics that take them for errors; once reduced."""
        self._under_way: list[UnderWay] = []
        whole = [i for i, part in enumerate(statistics) if part.gathers and async_op]
        at_once = Reduction([statistics[i] for i in whole], group, async_op=False) if whole else None
        gathered = [] if at_once is None else at_once.states()
        self.elsewhere.update({} if at_once is None else at_once.elsewhere)
        self._gathered = dict(zip(whole, gathered, strict=True))
        self._local_errors = self._count_errors()
        for reduction, places in buckets(statistics).items():
            if reduction == "sum":
                places = places + [(i, _ERRORS) for i in self._local_errors]
            places = [place for place in places if place[0] not in self._gathered]
            if places:
                self._send(reduction, places, async_op)

    def _count_errors(self) -> dict[int, Tensor]:
        """Put the number of bad values of each statistic that takes them for errors among what is summed.

        A statistic without sums is left out: it would need a collective of its own.
        """
        counts = {}
        for i, part in enumerate(self.statistics):
            summed = any(slot.reduction == "sum" for name, slot in part.slots.items() if name != "clean")
            if part.checked and part.severity == "error" and summed and not part.in_batch:
                faults = part.faults()
                if faults is not None and i not in self._gathered:
                    counts[i] = self._states[i][_ERRORS] = faults.detach().to(torch.int64).clone()
        return counts

    def _send(self, reduction: str, places: list[Place], async_op: bool) -> None:
        parts = [self._states[i][name] for i, name in places]
        value = moved(flatten(parts), self._carrier or parts[0].device)
        if reduction == "fold":
            into, work = gather_into(value, self.group, async_op)
        else:
            into = value
            work = dist.all_reduce(into, op=OPERATIONS[reduction], group=self.group, async_op=async_op)
        self._under_way.append(UnderWay(places, parts, into, work, reduction == "fold"))

    def ready(self) -> bool:
        """Whether the processes have answered; does not wait."""
        return all(one.work is None or one.work.is_completed() for one in self._under_way)

    def states(self) -> list[State]:
        """The states over all processes. **This waits** where an asynchronous reduction is not ready."""
        for one in self._under_way:
            if one.work is not None:
                one.work.wait()
            found = moved(one.into, one.parts[0].device)
            pieces = split_rows(found, one.parts) if one.rows else split(found, one.parts)
            for (i, name), piece, part in zip(one.places, pieces, one.parts, strict=True):
                self._states[i][name] = piece.to(part.dtype)
        self._under_way = []
        for i, count in self._local_errors.items():
            self.elsewhere[self.statistics[i]] = self._states[i].pop(_ERRORS) - count
        self._local_errors = {}
        return [
            self._gathered[i] if i in self._gathered else part.from_processes(state, self.group)
            for i, (part, state) in enumerate(zip(self.statistics, self._states, strict=True))
        ]


class UnderWay(NamedTuple):
    """Slots that travel together, and what they become."""

    places: list[Place]
    parts: list[Tensor]
    into: Tensor
    work: Any
    rows: bool
    """Whether there is a row per process."""


def buckets(statistics: Sequence[Statistic]) -> dict[str, list[Place]]:
    """Slots by reduction; what the checks note about updates stays with the process that ran them."""
    found: dict[str, list[Place]] = {}
    for i, statistic in enumerate(statistics):
        for name, slot in statistic.slots.items():
            if name != "clean":
                found.setdefault(slot.reduction, []).append((i, name))
    return found


def flatten(parts: Sequence[Tensor]) -> Tensor:
    """All of `parts` in one row. Integers among floats travel as float64, which is exact up to 2**53."""
    dtypes = {part.dtype for part in parts}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float64
    return torch.cat([part.reshape(-1).to(dtype) for part in parts])


def gather(value: Tensor, group: Any) -> Tensor:
    """``[ranks, *value.shape]``."""
    return gather_into(value, group, async_op=False)[0]


def gather_into(value: Tensor, group: Any, async_op: bool) -> tuple[Tensor, Any]:
    """``[ranks, *value.shape]``, and what to wait for before reading it; None for nothing."""
    ranks = dist.get_world_size(group)
    into = value.new_empty((ranks, *value.shape))
    flat = into.view(ranks * value.shape[0], *value.shape[1:])
    # The older name warns where there is the newer one.
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    return into, getattr(dist, name)(flat, value, group=group, async_op=async_op)


def exchange(values: Sequence[Tensor], known: Sequence[bool], carrier: Any, group: Any) -> list[list[Tensor]]:
    """For each of `values`, which are on one device, those of every process; they travel on `carrier`.

    All travel together as bytes. Where shape and dtype are not `known` to be the same in every process, they
    have to be exchanged first, and **the host waits** for them.
    """
    home = values[0].device
    forms = [[form_of(one) for one in values] for _ in range(dist.get_world_size(group))]
    strange = [i for i, same in enumerate(known) if not same]
    if strange:
        mine = torch.tensor([written(forms[0][i]) for i in strange], device="cpu")
        for of_rank, told in zip(forms, gather(moved(mine, carrier), group).tolist(), strict=True):
            for i, numbers in zip(strange, told, strict=True):
                of_rank[i] = read(numbers)
    size = max(ALIGNED, *(size_of(of_rank) for of_rank in forms))
    sent = moved(packed(values, size), carrier)
    rows = moved(gather(sent, group), home)
    found = [unpacked(row, of_rank) for row, of_rank in zip(rows, forms, strict=True)]
    return [list(ranks) for ranks in zip(*found, strict=True)]


def gather_uneven(
    values: Sequence[Sequence[Tensor]], device: torch.device, group: Any
) -> list[list[list[Tensor]]]:
    """For each of `values`, lists of tensors that differ between processes, those of every process.

    They come on `device`. All travel together as bytes, once their shapes have been exchanged. **The host
    waits** for both.
    """
    forms: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(forms, [[form_of(one) for one in several] for several in values], group=group)
    flat = [[form for several in of_rank for form in several] for of_rank in forms]
    carrier = carrier_device(group) or device
    mine = [moved(one.detach(), carrier) for several in values for one in several]
    size = max(ALIGNED, *(size_of(of_rank) for of_rank in flat))
    rows = moved(gather(moved(packed(mine, size), carrier), group), device)
    found = [iter(unpacked(row, of_rank)) for row, of_rank in zip(rows, flat, strict=True)]
    return [
        [[next(tensors) for _ in of_rank[i]] for of_rank, tensors in zip(forms, found, strict=True)]
        for i in range(len(values))
    ]


def by_function(gather: Callable[..., Any], statistic: Statistic, group: Any) -> State:
    """The state over all that ``gather(tensor, group=group)`` reaches, joined as checkpoints are."""
    saved = {name: value for name, value in statistic.saved().items() if name != "clean"}
    answers = {name: list(gather(value, group=group)) for name, value in saved.items()}
    whole: Statistic | None = None
    for values in zip(*answers.values(), strict=True):
        one = statistic.silent_copy()
        one.reset()
        one.load({"clean": statistic.state["clean"], **dict(zip(answers, values, strict=True))})
        if whole is None:
            whole = one
        else:
            whole.absorb(one)
    return statistic.state if whole is None else whole.state


def split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    pieces = torch.split(flat, [part.numel() for part in like])
    return [piece.view(part.shape) for piece, part in zip(pieces, like, strict=True)]


def split_rows(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    pieces = torch.split(flat, [part.numel() for part in like], dim=1)
    return [piece.reshape(flat.shape[0], *part.shape) for piece, part in zip(pieces, like, strict=True)]


def as_group(group: Any) -> Any:
    """The process group of a mesh; a group as it is."""
    return group.get_group() if hasattr(group, "get_group") else group


def carrier_device(group: Any) -> torch.device | None:
    """The only kind of device the group's backend carries, or None where it carries what it is given."""
    if str(dist.get_backend(group)).lower() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if str(dist.get_backend(group)).lower() == "gloo" else None


OPERATIONS = (
    {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
    if (dist.is_available())
    else {}
)
