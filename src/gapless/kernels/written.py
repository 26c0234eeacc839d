"""Which of its arguments a kernel reads and writes: its pointers, followed to where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gapless.kernels.nodes import Block, Function, Module, Op, every_op

_STORES = frozenset({
    "tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_store", "tt.descriptor_reduce",
    "tt.descriptor_scatter", "tt.experimental_descriptor_store",
})  # fmt: skip
_LOADS = frozenset({
    "tt.load", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_load", "tt.descriptor_gather",
    "tt.descriptor_reduce", "tt.experimental_descriptor_load", "tt.experimental_descriptor_gather",
    "ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local",
})  # fmt: skip
_ENDS = frozenset({"tt.load", "tt.atomic_rmw", "tt.atomic_cas", "tt.dot", "tt.reduce", "arith.cmpi"})
"""What comes out of these is no address any more."""
_SOUNDS = ("store", "reduce", "scatter", "atomic", "_to_global")
_SHARED = frozenset({"ttg.local_store", "ttg.local_scatter"})
"""What writes to the program's own memory and to no argument."""

Edge = tuple[str, str]


class Touched(NamedTuple):
    """Positions of the arguments that are `read` and `written`; `lost`: a write could not be followed."""

    read: frozenset[int]
    written: frozenset[int]
    lost: bool


def touched(module: Module) -> Touched:
    """What the kernel of `module` reads and writes, found in its text alone."""
    roots = _roots(module)
    read: set[int] = set()
    written: set[int] = set()
    lost = False
    for function in module.functions.values():
        for op in every_op(function.blocks):
            found = roots.get(f"{function.name}/{op.operands[0]}", set()) if op.operands else set()
            if op.name in _LOADS:
                read |= found
            if op.name in _STORES or _may_write(op):
                written |= found
                lost = lost or not found
    return Touched(frozenset(read), frozenset(written), lost)


def _may_write(op: Op) -> bool:
    """Whether an operation of another dialect sounds like it."""
    if op.results or not op.operands or op.name in _SHARED or op.name.endswith("return"):
        return False
    return any(one in op.name for one in _SOUNDS)


def _roots(module: Module) -> dict[str, set[int]]:
    """For each value (``function/%name``) the arguments of the kernel that it may point into."""
    kernel = module.kernel
    roots = {
        f"{kernel.name}/{name}": {position}
        for position, (name, kind) in enumerate(zip(kernel.names, kernel.types, strict=True))
        if kind.element.startswith("!tt.")
    }
    edges = [edge for function in module.functions.values() for edge in _edges(module, function)]
    changed = True
    while changed:
        changed = False
        for source, target in edges:
            known = roots.get(source)
            if known and not known <= roots.setdefault(target, set()):
                roots[target] |= known
                changed = True
    return roots


def _edges(module: Module, function: Function) -> Iterator[Edge]:
    """From each value to those that are made of it."""
    for source, target in _inside(module, function.blocks, ()):
        scope = "" if "/" in target else f"{function.name}/"
        yield f"{function.name}/{source}", scope + target


def _inside(module: Module, blocks: list[Block], results: tuple[str, ...]) -> Iterator[Edge]:
    """`results` are those of the operation whose regions these blocks are."""
    by_label = {block.label: block for block in blocks}
    for block in blocks:
        for op in block.ops:
            for label, values in op.targets:
                yield from zip(values, by_label[label].names, strict=False)
            if op.name in ("scf.yield", "scf.condition"):
                yield from zip(op.operands[op.name == "scf.condition" :], results, strict=False)
            elif op.name == "tt.call":
                called = module.functions.get(callee(op))
                if called is not None:
                    bound = (f"{called.name}/{name}" for name in called.names)
                    yield from zip(op.operands, bound, strict=False)
            elif op.regions:
                yield from _carried(op)
            elif op.name not in _ENDS:
                yield from ((value, result) for value in op.operands for result in op.results)
            for region in op.regions:
                yield from _inside(module, region, op.results)


def _carried(op: Op) -> Iterator[Edge]:
    """What a loop carries from one round to the next, and out of it."""
    if op.name not in ("scf.for", "scf.while"):
        return
    names = op.binds[op.name == "scf.for" :]
    starts = op.operands[3:] if op.name == "scf.for" else op.operands
    yield from zip(starts, names, strict=False)
    yield from zip(names, op.results, strict=False)
    yield from zip(_last(op.regions[-1]), names, strict=False)
    if op.name == "scf.while":
        yield from zip(_last(op.regions[0])[1:], op.regions[1][0].names, strict=False)


def _last(region: list[Block]) -> tuple[str, ...]:
    """What the end of a region hands on."""
    return region[-1].ops[-1].operands if region[-1].ops else ()


def callee(op: Op) -> str:
    """The function that ``tt.call @name(…)`` calls; a name in quotes may hold brackets."""
    name = op.text.split("@", 1)[1]
    return name.split('"')[1] if name.startswith('"') else name.split("(")[0].strip()
