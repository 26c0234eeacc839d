"""Loops, conditions, jumps and calls: which programs are where.

Programs run in step. Where they part ways, each way is run for those that take it, one way after the other,
and what comes together again is chosen per program. What all of them agree on costs nothing extra.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless.kernels.machine import Machine, operation
from gapless.kernels.nodes import Block, Op
from gapless.kernels.values import Tensor, Unsupported, chosen
from gapless.kernels.written import callee


def run(machine: Machine, blocks: list[Block]) -> list[Any]:
    """Run the body of a function: blocks with jumps between them, forwards only. Gives what it returns."""
    if len(blocks) == 1:
        end = machine.block(blocks[0])
        return machine.all_of(end.operands)
    ordered = _in_order(blocks)
    place = {block.label: position for position, block in enumerate(ordered)}
    base = machine.active
    waiting: list[Tensor | None] = [None] * len(ordered)
    waiting[0] = torch.ones(machine.count, dtype=torch.bool) if base is None else base
    returned: list[Any] = []
    for position, block in enumerate(ordered):  # each comes behind all that jump to it
        here = waiting[position]
        if here is None or not bool(here.any()):
            continue
        machine.active = None if bool(here.all()) else here
        end = machine.block(block)
        if end.name == "tt.return":
            values = machine.all_of(end.operands)
            returned = _merged(here, values, returned)
            continue
        for there, arguments, mask in _ways(machine, end, here):
            target = place[there]
            if target <= position:
                raise Unsupported("a jump backwards")
            names = ordered[target].names
            before = [machine.values.get(name) for name in names]
            machine.bind(names, _merged(mask, machine.all_of(arguments), before))
            known = waiting[target]
            waiting[target] = mask if known is None else known | mask
    machine.active = base
    return returned


def _merged(mask: Tensor, new: list[Any], old: list[Any]) -> list[Any]:
    """`new` for the programs in `mask`, what was there before for others."""
    if not old or bool(mask.all()):
        return new
    return [one if two is None else chosen(mask, one, two) for one, two in zip(new, old, strict=True)]


def _ways(machine: Machine, end: Op, here: Tensor) -> list[tuple[str, tuple[str, ...], Tensor]]:
    if end.name == "cf.br":
        return [(*end.targets[0], here)]
    if end.name != "cf.cond_br":
        return []
    condition = machine.values[end.operands[0]].expand(machine.count)
    yes, no = here & condition, here & ~condition
    return [(*target, mask) for target, mask in zip(end.targets, (yes, no), strict=True) if bool(mask.any())]


def _in_order(blocks: list[Block]) -> list[Block]:
    """Blocks so that each comes before those it jumps to."""
    by_label = {block.label: block for block in blocks}
    seen: set[int] = set()
    order: list[Block] = []

    def visit(block: Block) -> None:
        if id(block) in seen:
            return
        seen.add(id(block))
        for label, _ in reversed(block.ops[-1].targets):
            visit(by_label[label])
        order.append(block)

    visit(blocks[0])
    return order[::-1]


@operation("tt.call")
def call(machine: Machine, op: Op) -> Any:
    name = callee(op)
    function = machine.module.functions.get(name)
    if function is None:
        raise Unsupported(f"a call of {name}")
    arguments = machine.raw(op)
    outer = machine.values
    machine.values = dict(zip(function.names, arguments, strict=True))
    try:
        out = run(machine, function.blocks)
    finally:
        machine.values = outer
    return out[0] if len(op.results) == 1 else out


@operation("scf.if")
def branch(machine: Machine, op: Op) -> Any:
    condition = machine.values[op.operands[0]]
    if condition.shape[0] == 1:
        return _taken(machine, op, 0 if bool(condition) else 1)
    base = machine.active
    on = condition if base is None else condition & base
    off = ~condition if base is None else ~condition & base
    if not bool(off.any()):
        return _taken(machine, op, 0)
    if not bool(on.any()):
        return _taken(machine, op, 1)
    yes = _taken(machine, op, 0, on)
    no = _taken(machine, op, 1, off)
    return [chosen(condition, a, b) for a, b in zip(yes, no, strict=True)]


def _taken(machine: Machine, op: Op, which: int, active: Tensor | None = None) -> list[Any]:
    """Run one branch for the programs that are `active` (None: those that are anyway)."""
    if which >= len(op.regions):
        return []
    base = machine.active
    if active is not None:
        machine.active = active
    end = machine.block(op.regions[which][0])
    machine.active = base
    return machine.all_of(end.operands)


@operation("scf.execute_region")
def execute(machine: Machine, op: Op) -> Any:
    return run(machine, op.regions[0])


@operation("scf.for")
def loop(machine: Machine, op: Op) -> Any:
    low, high, step, *carried = machine.raw(op)
    variable, *names = op.binds
    body = op.regions[0][0]
    if op.text == "unsigned":
        low, high = _unsigned(low), _unsigned(high)
    if low.shape[0] == high.shape[0] == step.shape[0] == 1:
        for number in range(int(low), int(high), int(step)):
            machine.values[variable] = torch.full_like(low, number)
            machine.bind(names, carried)
            carried = machine.all_of(machine.block(body).operands)
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
        new = machine.all_of(machine.block(body).operands)
        carried = new if full else [chosen(on, a, b) for a, b in zip(new, carried, strict=True)]
        index = index + step
    machine.active = base
    return carried


def _unsigned(value: Tensor) -> Tensor:
    return value.long() & 0xFFFF_FFFF if value.dtype is torch.int32 else value


@operation("scf.while")
def repeat(machine: Machine, op: Op) -> Any:
    """``scf.while``: the first region tells whether to go on, the second is the body."""
    before, after = op.regions[0][0], op.regions[1][0]
    carried = machine.raw(op)
    base = machine.active
    live = torch.ones(machine.count, dtype=torch.bool) if base is None else base
    out: list[Any] = []
    while True:
        machine.active = None if bool(live.all()) else live
        machine.bind(op.binds or before.names, carried)
        condition, *values = machine.all_of(machine.block(before).operands)
        out = _merged(live, values, out)
        live = live & condition
        if not bool(live.any()):
            break
        machine.active = None if bool(live.all()) else live
        machine.bind(after.names, values)
        new = machine.all_of(machine.block(after).operands)
        carried = _merged(live, new, carried)
    machine.active = base
    return out
