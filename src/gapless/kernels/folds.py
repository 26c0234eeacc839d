"""Reductions and scans: combine elements along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless.kernels.machine import KernelMachine, operation
from gapless.kernels.nodes import Op
from gapless.kernels.values import Tensor, Unsupported

_REDUCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "arith.addf": lambda block, axis: block.sum(axis),
    "arith.addi": lambda block, axis: block.sum(axis).to(block.dtype),
    "arith.maximumf": torch.amax,
    "arith.minimumf": torch.amin,
    "arith.maxsi": torch.amax,
    "arith.minsi": torch.amin,
}
_NAN_IGNORING_REDUCTIONS = {"arith.maxnumf": torch.amax, "arith.minnumf": torch.amin}
"""Reductions that skip NaN; torch's are equal to them only without NaN."""
_SCANS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "arith.addf": lambda block, axis: (
        block.float().cumsum(axis).to(block.dtype) if block.dtype.itemsize < 4 else block.cumsum(axis)
    ),
    "arith.addi": lambda block, axis: block.cumsum(axis).to(block.dtype),
    "arith.maxsi": lambda block, axis: block.cummax(axis)[0],
    "arith.minsi": lambda block, axis: block.cummin(axis)[0],
}


def _single_operation(op: Op) -> str:
    """Return the operation that combines two elements if it is a single one; else ""."""
    block = op.regions[0][0]
    if len(op.operands) == 1 and len(block.ops) == 2 and set(block.ops[0].operands) == set(block.names):
        return block.ops[0].name
    return ""


def _expanded_along_axis(machine: KernelMachine, op: Op) -> tuple[list[Tensor], int]:
    """Return the blocks with all elements along the axis, and that axis."""
    axis = op.integer("axis") + 1
    blocks = []
    for block, kind in zip(machine.get(op), op.operand_types, strict=True):
        sizes = [-1] * block.dim()
        sizes[axis] = kind.shape[axis - 1]
        blocks.append(block.expand(sizes))
        machine.cost.work += block.numel()
    if len(blocks) > 1:
        blocks = list(torch.broadcast_tensors(*blocks))
    return blocks, axis


@operation("tt.reduce")
def reduce(machine: KernelMachine, op: Op) -> Any:
    blocks, axis = _expanded_along_axis(machine, op)
    single = _single_operation(op)
    if single in _REDUCTIONS and blocks[0].dtype is not torch.bool:
        return [_REDUCTIONS[single](blocks[0], axis)]
    if single in _NAN_IGNORING_REDUCTIONS:
        reduced = _NAN_IGNORING_REDUCTIONS[single](blocks[0], axis)
        if not bool(torch.isnan(reduced).any()):
            return [reduced]
    combine = _make_combine(machine, op)
    size = blocks[0].shape[axis]
    while size > 1:
        if size % 2:
            raise Unsupported("a reduction of an odd number of elements")
        pairs = [block.unflatten(axis, (size // 2, 2)) for block in blocks]
        blocks = combine(
            [pair.select(axis + 1, 0) for pair in pairs], [pair.select(axis + 1, 1) for pair in pairs]
        )
        size //= 2
    return [block.squeeze(axis) for block in blocks]


@operation("tt.scan")
def scan(machine: KernelMachine, op: Op) -> Any:
    blocks, axis = _expanded_along_axis(machine, op)
    backwards = "true" in op.attributes.get("reverse", "")
    if backwards:
        blocks = [block.flip(axis) for block in blocks]
    single = _single_operation(op)
    if single in _SCANS and blocks[0].dtype is not torch.bool:
        blocks = [_SCANS[single](blocks[0], axis)]
    else:
        blocks = _scan_by_doubling(_make_combine(machine, op), blocks, axis)
    return [block.flip(axis) for block in blocks] if backwards else blocks


Combination = Callable[[list[Tensor], list[Tensor]], list[Tensor]]


def _scan_by_doubling(combine: Combination, blocks: list[Tensor], axis: int) -> list[Tensor]:
    """Combine each element with those 1, 2, 4, … before it: as many rounds as the length has bits."""
    size, step = blocks[0].shape[axis], 1
    while step < size:
        before = [block.narrow(axis, 0, size - step) for block in blocks]
        here = [block.narrow(axis, step, size - step) for block in blocks]
        new = combine(before, here)
        blocks = [
            torch.cat((block.narrow(axis, 0, step), part), axis)
            for block, part in zip(blocks, new, strict=True)
        ]
        step *= 2
    return blocks


def _make_combine(machine: KernelMachine, op: Op) -> Combination:
    region = op.regions[0]
    if len(region) != 1:
        raise Unsupported(f"{op.name} with jumps inside")
    block = region[0]

    def combine(first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
        machine.bind(block.names, [*first, *second])
        end = machine.block(block)
        shape = first[0].shape
        return [value.expand(shape) for value in machine.values_of(end.operands)]

    return combine


@operation("tt.map_elementwise")
def map_elementwise(machine: KernelMachine, op: Op) -> Any:
    region = op.regions[0]
    if len(region) != 1 or op.integer("pack", 1) != 1 or any(inner.regions for inner in region[0].ops):
        raise Unsupported("tt.map_elementwise with jumps inside")
    machine.bind(region[0].names, machine.get(op))
    return machine.values_of(machine.block(region[0]).operands)


@operation("tt.histogram")
def histogram(machine: KernelMachine, op: Op) -> Tensor:
    block, *masks = machine.get(op)
    shape = op.operand_types[0].shape
    block = machine.expand_fully(block, shape).long()
    bins = op.type.shape[0]
    inside = (block >= 0) & (block < bins)
    if masks:
        inside = inside & masks[0]
    out = torch.zeros(machine.count, bins, dtype=torch.int32)
    return out.scatter_add_(1, block.clamp(0, bins - 1), inside.int())
