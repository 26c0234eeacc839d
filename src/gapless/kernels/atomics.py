"""Atomic operations: the programs take turns in the order of their numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gapless.kernels.machine import Machine, operation
from gapless.kernels.memory import Shape, count_bytes, gathered, parts
from gapless.kernels.nodes import Op
from gapless.kernels.unsigned import ordered
from gapless.kernels.values import Memory, Pointer, Tensor, Unsupported, dtype_of

Combine = Callable[[Tensor, Tensor], Tensor]

_COMBINED: dict[str, Combine] = {
    "add": torch.add,
    "fadd": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "umax": lambda a, b: torch.where(ordered(a) >= ordered(b), a, b),
    "umin": lambda a, b: torch.where(ordered(a) <= ordered(b), a, b),
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "exch": lambda _, b: b,
}
_SCATTERED = {"max": "amax", "min": "amin"}


@operation("tt.atomic_rmw")
def atomic_rmw(machine: Machine, op: Op) -> Tensor | None:
    pointer, value, *rest = machine.get(op)
    kind = op.text.split(",")[0].strip()
    asked = bool(op.results) and op.results[0] not in op.last
    return exchanged(machine, kind, pointer, value, rest[0] if rest else None, op.given[0].shape, asked=asked)


def exchanged(
    machine: Machine,
    kind: str,
    pointer: Pointer,
    value: Tensor,
    mask: Tensor | None,
    shape: Shape,
    *,
    asked: bool,
) -> Tensor | None:
    """Change memory by `value`, one element after the other; gives what was there before, where `asked`."""
    if kind not in _COMBINED:
        raise Unsupported(f"the atomic operation {kind}")
    count_bytes(machine, machine.cost.written, pointer, mask, shape)
    where = machine.allowed(mask, len(shape))
    at = machine.whole(pointer.places, shape)
    given = machine.whole(value, shape)
    keep = machine.whole(torch.ones((), dtype=torch.bool) if where is None else where, shape)
    dtype = dtype_of(pointer.element)
    before = gathered(machine, Pointer(pointer.element, pointer.memory, at), keep, dtype) if asked else None
    if before is not None:
        before = torch.where(keep, before, torch.zeros((), dtype=dtype))
    if pointer.memory is not None:
        _into(pointer.memory, kind, at, given, keep, before)
        return before
    for memory, here, inside in parts(machine, torch.where(keep, at, 0)):
        _into(memory, kind, inside // dtype.itemsize, given, here, before)
    return before


def _into(memory: Memory, kind: str, at: Tensor, value: Tensor, keep: Tensor, before: Tensor | None) -> None:
    flat = memory.flat(value.dtype)
    keep = keep & (at >= 0) & (at < flat.numel())
    places, values = at[keep], value[keep]
    if before is not None and places.numel() > 1 and len(torch.unique(places)) < places.numel():
        before[keep] = _in_turn(flat, _COMBINED[kind], places, values)
    elif kind in ("add", "fadd"):
        if flat.dtype in (torch.float16, torch.bfloat16):
            _added_half(flat, places, values)
        else:
            flat.index_put_((places,), values, accumulate=True)
    elif kind in _SCATTERED:
        flat.scatter_reduce_(0, places, values, _SCATTERED[kind])
    elif kind == "exch" or len(torch.unique(places)) == places.numel():
        flat[places] = _COMBINED[kind](flat[places], values)
    else:
        _in_turn(flat, _COMBINED[kind], places, values)


def _added_half(flat: Tensor, places: Tensor, values: Tensor) -> None:
    """Add in fp32, so that the order in which programs come is not seen in the result."""
    touched, number = torch.unique(places, return_inverse=True)
    sums = flat[touched].float().index_add_(0, number, values.float())
    flat[touched] = sums.to(flat.dtype)


def _in_turn(flat: Tensor, combine: Combine, places: Tensor, values: Tensor) -> Tensor:
    """A round for the first that goes to each place, then one for the second, …; what each of them saw."""
    seen = torch.empty_like(values)
    order = torch.argsort(places, stable=True)
    sorted_places = places[order]
    first = torch.searchsorted(sorted_places, sorted_places)
    turn = torch.arange(len(order)) - first
    for number in range(int(turn.max()) + 1):
        these = order[turn == number]
        seen[these] = flat[places[these]]
        flat[places[these]] = combine(flat[places[these]], values[these])
    return seen


@operation("tt.atomic_cas")
def atomic_cas(machine: Machine, op: Op) -> Tensor:
    """Compare and swap; kernels with it run one program at a time (`gapless.kernels.evaluate`)."""
    pointer, compared, value = machine.get(op)
    shape = op.type.shape
    keep = machine.allowed(None, len(shape))
    keep = torch.ones((), dtype=torch.bool) if keep is None else keep
    at = machine.whole(pointer.places, shape)
    dtype = dtype_of(pointer.element)
    old = gathered(machine, Pointer(pointer.element, pointer.memory, at), machine.whole(keep, shape), dtype)
    swap = machine.whole(keep, shape) & (old == compared)
    exchanged(machine, "exch", pointer, value, swap, shape, asked=False)
    return old
