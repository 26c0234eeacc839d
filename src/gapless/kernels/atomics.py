"""Atomic operations: programs take turns in the order of their numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gapless.kernels.machine import KernelMachine, operation
from gapless.kernels.memory import Shape, count_bytes, gather_elements, split_by_storage
from gapless.kernels.nodes import Op
from gapless.kernels.unsigned import order_key
from gapless.kernels.values import Pointer, StorageView, Tensor, Unsupported, dtype_of

Combine = Callable[[Tensor, Tensor], Tensor]

_COMBINE_FUNCTIONS: dict[str, Combine] = {
    "add": torch.add,
    "fadd": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "umax": lambda a, b: torch.where(order_key(a) >= order_key(b), a, b),
    "umin": lambda a, b: torch.where(order_key(a) <= order_key(b), a, b),
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "exch": lambda _, b: b,
}
_SCATTER_REDUCTIONS = {"max": "amax", "min": "amin"}


@operation("tt.atomic_rmw")
def atomic_rmw(machine: KernelMachine, op: Op) -> Tensor | None:
    pointer, value, *rest = machine.get(op)
    kind = op.text.split(",")[0].strip()
    returns_old = bool(op.results) and op.results[0] not in op.last_uses
    return atomic_update(
        machine,
        kind,
        pointer,
        value,
        rest[0] if rest else None,
        op.operand_types[0].shape,
        returns_old=returns_old,
    )


def atomic_update(
    machine: KernelMachine,
    kind: str,
    pointer: Pointer,
    value: Tensor,
    mask: Tensor | None,
    shape: Shape,
    *,
    returns_old: bool,
) -> Tensor | None:
    """Combine `value` into memory, element by element; return the old values if `returns_old`."""
    if kind not in _COMBINE_FUNCTIONS:
        raise Unsupported(f"the atomic operation {kind}")
    count_bytes(machine, machine.cost.written, pointer, mask, shape)
    where = machine.active_mask(mask, len(shape))
    at = machine.expand_fully(pointer.places, shape)
    values = machine.expand_fully(value, shape)
    keep = machine.expand_fully(torch.ones((), dtype=torch.bool) if where is None else where, shape)
    dtype = dtype_of(pointer.element)
    before = (
        gather_elements(machine, Pointer(pointer.element, pointer.memory, at), keep, dtype)
        if returns_old
        else None
    )
    if before is not None:
        before = torch.where(keep, before, torch.zeros((), dtype=dtype))
    if pointer.memory is not None:
        _update_memory(pointer.memory, kind, at, values, keep, before)
        return before
    for memory, mask_there, inside in split_by_storage(machine, torch.where(keep, at, 0)):
        _update_memory(memory, kind, inside // dtype.itemsize, values, mask_there, before)
    return before


def _update_memory(
    memory: StorageView, kind: str, at: Tensor, value: Tensor, keep: Tensor, before: Tensor | None
) -> None:
    flat = memory.flat(value.dtype)
    keep = keep & (at >= 0) & (at < flat.numel())
    places, values = at[keep], value[keep]
    if before is not None and places.numel() > 1 and len(torch.unique(places)) < places.numel():
        before[keep] = _update_one_by_one(flat, _COMBINE_FUNCTIONS[kind], places, values)
    elif kind in ("add", "fadd"):
        if flat.dtype in (torch.float16, torch.bfloat16):
            _add_in_fp32(flat, places, values)
        else:
            flat.index_put_((places,), values, accumulate=True)
    elif kind in _SCATTER_REDUCTIONS:
        flat.scatter_reduce_(0, places, values, _SCATTER_REDUCTIONS[kind])
    elif kind == "exch" or len(torch.unique(places)) == places.numel():
        flat[places] = _COMBINE_FUNCTIONS[kind](flat[places], values)
    else:
        _update_one_by_one(flat, _COMBINE_FUNCTIONS[kind], places, values)


def _add_in_fp32(flat: Tensor, places: Tensor, values: Tensor) -> None:
    """Add half-precision values in fp32, so that the order of programs does not change the result."""
    touched, number = torch.unique(places, return_inverse=True)
    sums = flat[touched].float().index_add_(0, number, values.float())
    flat[touched] = sums.to(flat.dtype)


def _update_one_by_one(flat: Tensor, combine: Combine, places: Tensor, values: Tensor) -> Tensor:
    """Update in rounds, each with the next value for each place; return what each element found before."""
    old_values = torch.empty_like(values)
    order = torch.argsort(places, stable=True)
    sorted_places = places[order]
    first = torch.searchsorted(sorted_places, sorted_places)
    turn = torch.arange(len(order)) - first
    for number in range(int(turn.max()) + 1):
        these = order[turn == number]
        old_values[these] = flat[places[these]]
        flat[places[these]] = combine(flat[places[these]], values[these])
    return old_values


@operation("tt.atomic_cas")
def atomic_cas(machine: KernelMachine, op: Op) -> Tensor:
    """Compare and swap; kernels with it run one program at a time (see `gapless.kernels.evaluate`)."""
    pointer, compared, value = machine.get(op)
    shape = op.type.shape
    keep = machine.active_mask(None, len(shape))
    keep = torch.ones((), dtype=torch.bool) if keep is None else keep
    at = machine.expand_fully(pointer.places, shape)
    dtype = dtype_of(pointer.element)
    old = gather_elements(
        machine, Pointer(pointer.element, pointer.memory, at), machine.expand_fully(keep, shape), dtype
    )
    swap = machine.expand_fully(keep, shape) & (old == compared)
    atomic_update(machine, "exch", pointer, value, swap, shape, returns_old=False)
    return old
