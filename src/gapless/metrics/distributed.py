"""States over all processes: one collective per kind of reduction and dtype, for however many statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gapless.metrics.batch import moved
from gapless.metrics.statistic import State, Statistic

Place = tuple[int, str]


def available() -> bool:
    """Whether this process is one of several that can talk to each other."""
    return dist.is_available() and dist.is_initialized()


def reduce(statistics: Sequence[Statistic], group: Any = None) -> list[State]:
    """The states of `statistics` over the processes of `group`: a group, a one-dimensional mesh, or all.

    Local states stay as they are. Every process takes part, with data or without. The values travel on a
    device the group's backend can reach, wherever the states live.
    """
    group = as_group(group)
    carrier = carrier_device(group)
    states = [{name: part.state[name] for name in part.slots} for part in statistics]
    for reduction, places in buckets(statistics).items():
        parts = [states[i][name] for i, name in places]
        home = parts[0].device
        sent = moved(flatten(parts), carrier or home)
        if reduction == "fold":
            pieces = split_rows(moved(gather(sent, group), home), parts)
        else:
            dist.all_reduce(sent, op=OPERATIONS[reduction], group=group)
            pieces = split(moved(sent, home), parts)
        for (i, name), piece, part in zip(places, pieces, parts, strict=True):
            states[i][name] = piece.to(part.dtype)
    return [
        statistic.from_processes(state, group) for statistic, state in zip(statistics, states, strict=True)
    ]


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
    ranks = dist.get_world_size(group)
    into = value.new_empty((ranks, *value.shape))
    dist.all_gather_into_tensor(into.view(ranks * value.shape[0], *value.shape[1:]), value, group=group)
    return into


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
