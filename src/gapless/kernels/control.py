"""Loops, conditions, jumps and calls: which programs run which operations.

Programs run in step. Where they diverge, each branch runs for the programs that take it, one branch after the
other, and the results are merged per program. Where all programs agree nothing is run twice.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless.kernels.machine import KernelMachine, operation
from gapless.kernels.nodes import CodeBlock, Op
from gapless.kernels.values import Tensor, Unsupported, choose
from gapless.kernels.written import callee


def run_blocks(machine: KernelMachine, blocks: list[CodeBlock]) -> list[Any]:
    """Run a function's blocks, with forward jumps only, and return the function's results."""
    if len(blocks) == 1:
        end = machine.block(blocks[0])
        return machine.values_of(end.operands)
    ordered = _sort_blocks(blocks)
    place = {block.label: position for position, block in enumerate(ordered)}
    base = machine.active
    waiting: list[Tensor | None] = [None] * len(ordered)
    waiting[0] = torch.ones(machine.count, dtype=torch.bool) if base is None else base
    returned: list[Any] = []
    for position, block in enumerate(ordered):  # each comes after all blocks that jump to it
        here = waiting[position]
        if here is None or not bool(here.any()):
            continue
        machine.active = None if bool(here.all()) else here
        end = machine.block(block)
        if end.name == "tt.return":
            values = machine.values_of(end.operands)
            returned = _merge(here, values, returned)
            continue
        for label, arguments, mask in _outgoing_jumps(machine, end, here):
            target = place[label]
            if target <= position:
                raise Unsupported("a jump backwards")
            names = ordered[target].names
            before = [machine.values.get(name) for name in names]
            machine.bind(names, _merge(mask, machine.values_of(arguments), before))
            earlier = waiting[target]
            waiting[target] = mask if earlier is None else earlier | mask
    machine.active = base
    return returned


def _merge(mask: Tensor, new: list[Any], old: list[Any]) -> list[Any]:
    """Return `new` for the programs in `mask`, `old` for the others."""
    if not old or bool(mask.all()):
        return new
    return [
        new_value if old_value is None else choose(mask, new_value, old_value)
        for new_value, old_value in zip(new, old, strict=True)
    ]


def _outgoing_jumps(
    machine: KernelMachine, end: Op, here: Tensor
) -> list[tuple[str, tuple[str, ...], Tensor]]:
    """Return the jumps at the end of a block: label, arguments, and the mask of programs that take it."""
    if end.name == "cf.br":
        return [(*end.targets[0], here)]
    if end.name != "cf.cond_br":
        return []
    condition = machine.values[end.operands[0]].expand(machine.count)
    yes, no = here & condition, here & ~condition
    return [(*target, mask) for target, mask in zip(end.targets, (yes, no), strict=True) if bool(mask.any())]


def _sort_blocks(blocks: list[CodeBlock]) -> list[CodeBlock]:
    """Return the blocks in an order in which each comes before those it jumps to."""
    by_label = {block.label: block for block in blocks}
    visited: set[int] = set()
    order: list[CodeBlock] = []

    def visit(block: CodeBlock) -> None:
        if id(block) in visited:
            return
        visited.add(id(block))
        for label, _ in reversed(block.ops[-1].targets):
            visit(by_label[label])
        order.append(block)

    visit(blocks[0])
    return order[::-1]


@operation("tt.call")
def call_function(machine: KernelMachine, op: Op) -> Any:
    name = callee(op)
    function = machine.module.functions.get(name)
    if function is None:
        raise Unsupported(f"a call of {name}")
    arguments = machine.raw(op)
    outer = machine.values
    machine.values = dict(zip(function.names, arguments, strict=True))
    try:
        out = run_blocks(machine, function.blocks)
    finally:
        machine.values = outer
    return out[0] if len(op.results) == 1 else out


@operation("scf.if")
def run_if(machine: KernelMachine, op: Op) -> Any:
    condition = machine.values[op.operands[0]]
    if condition.shape[0] == 1:
        return _run_branch(machine, op, 0 if bool(condition) else 1)
    base = machine.active
    on = condition if base is None else condition & base
    off = ~condition if base is None else ~condition & base
    if not bool(off.any()):
        return _run_branch(machine, op, 0)
    if not bool(on.any()):
        return _run_branch(machine, op, 1)
    yes = _run_branch(machine, op, 0, on)
    no = _run_branch(machine, op, 1, off)
    return [choose(condition, a, b) for a, b in zip(yes, no, strict=True)]


def _run_branch(machine: KernelMachine, op: Op, which: int, active: Tensor | None = None) -> list[Any]:
    """Run one branch for the `active` programs (None: those active already)."""
    if which >= len(op.regions):
        return []
    base = machine.active
    if active is not None:
        machine.active = active
    end = machine.block(op.regions[which][0])
    machine.active = base
    return machine.values_of(end.operands)


@operation("scf.execute_region")
def run_region(machine: KernelMachine, op: Op) -> Any:
    return run_blocks(machine, op.regions[0])


@operation("scf.for")
def run_for(machine: KernelMachine, op: Op) -> Any:
    low, high, step, *carried = machine.raw(op)
    variable, *names = op.binds
    body = op.regions[0][0]
    if op.text == "unsigned":
        low, high = _to_unsigned(low), _to_unsigned(high)
    if low.shape[0] == high.shape[0] == step.shape[0] == 1:
        for number in range(int(low), int(high), int(step)):
            machine.values[variable] = torch.full_like(low, number)
            machine.bind(names, carried)
            carried = machine.values_of(machine.block(body).operands)
        return carried
    base, index = machine.active, low
    while True:
        on = index < high
        on = on if base is None else on & base
        if not bool(on.any()):
            break
        full = bool(on.all())
        machine.active = None if full else on
        machine.values[variable] = index
        machine.bind(names, carried)
        new = machine.values_of(machine.block(body).operands)
        carried = new if full else [choose(on, a, b) for a, b in zip(new, carried, strict=True)]
        index = index + step
    machine.active = base
    return carried


def _to_unsigned(value: Tensor) -> Tensor:
    return value.long() & 0xFFFF_FFFF if value.dtype is torch.int32 else value


@operation("scf.while")
def run_while(machine: KernelMachine, op: Op) -> Any:
    """Run ``scf.while``: the first region decides whether to go on, the second is the body."""
    before, after = op.regions[0][0], op.regions[1][0]
    carried = machine.raw(op)
    base = machine.active
    live = torch.ones(machine.count, dtype=torch.bool) if base is None else base
    out: list[Any] = []
    while True:
        machine.active = None if bool(live.all()) else live
        machine.bind(op.binds or before.names, carried)
        condition, *values = machine.values_of(machine.block(before).operands)
        out = _merge(live, values, out)
        live = live & condition
        if not bool(live.any()):
            break
        machine.active = None if bool(live.all()) else live
        machine.bind(after.names, values)
        new = machine.values_of(machine.block(after).operands)
        carried = _merge(live, new, carried)
    machine.active = base
    return out
