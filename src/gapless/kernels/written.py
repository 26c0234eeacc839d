"""Find which of its arguments a kernel reads and writes, by following its pointers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gapless.kernels.nodes import CodeBlock, Function, Module, Op, all_ops

_STORES = frozenset({
    "tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_store", "tt.descriptor_reduce",
    "tt.descriptor_scatter", "tt.experimental_descriptor_store",
})  # fmt: skip
_LOADS = frozenset({
    "tt.load", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_load", "tt.descriptor_gather",
    "tt.descriptor_reduce", "tt.experimental_descriptor_load", "tt.experimental_descriptor_gather",
    "ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local",
})  # fmt: skip
_NON_ADDRESS_RESULTS = frozenset(
    {"tt.load", "tt.atomic_rmw", "tt.atomic_cas", "tt.dot", "tt.reduce", "arith.cmpi"}
)
"""Operations whose results are no addresses."""
_WRITING_WORDS = ("store", "reduce", "scatter", "atomic", "_to_global")
"""Words in names of operations that write to memory."""
_SHARED_MEMORY_WRITES = frozenset({"ttg.local_store", "ttg.local_scatter"})
"""Operations that write to shared memory and to no argument."""

Edge = tuple[str, str]


class ArgumentUse(NamedTuple):
    """Positions of the arguments that are `read` and `written`; `lost`: a write could not be followed."""

    read: frozenset[int]
    written: frozenset[int]
    lost: bool


def find_argument_use(module: Module) -> ArgumentUse:
    """Find which arguments the kernel of `module` reads and writes, from its text alone."""
    roots = _trace_to_arguments(module)
    read: set[int] = set()
    written: set[int] = set()
    lost = False
    for function in module.functions.values():
        for op in all_ops(function.blocks):
            arguments = roots.get(f"{function.name}/{op.operands[0]}", set()) if op.operands else set()
            if op.name in _LOADS:
                read |= arguments
            if op.name in _STORES or _may_write(op):
                written |= arguments
                lost = lost or not arguments
    return ArgumentUse(frozenset(read), frozenset(written), lost)


def _may_write(op: Op) -> bool:
    """Whether the name of an operation of another dialect suggests that it writes."""
    if op.results or not op.operands or op.name in _SHARED_MEMORY_WRITES or op.name.endswith("return"):
        return False
    return any(word in op.name for word in _WRITING_WORDS)


def _trace_to_arguments(module: Module) -> dict[str, set[int]]:
    """Return for each value (``function/%name``) the kernel arguments that it may point into."""
    kernel = module.kernel
    roots = {
        f"{kernel.name}/{name}": {position}
        for position, (name, kind) in enumerate(zip(kernel.names, kernel.types, strict=True))
        if kind.element.startswith("!tt.")
    }
    edges = [edge for function in module.functions.values() for edge in _data_flow(module, function)]
    changed = True
    while changed:
        changed = False
        for source, target in edges:
            arguments = roots.get(source)
            if arguments and not arguments <= roots.setdefault(target, set()):
                roots[target] |= arguments
                changed = True
    return roots


def _data_flow(module: Module, function: Function) -> Iterator[Edge]:
    """Yield pairs of each value and the values computed from it."""
    for source, target in _data_flow_of_blocks(module, function.blocks, ()):
        scope = "" if "/" in target else f"{function.name}/"
        yield f"{function.name}/{source}", scope + target


def _data_flow_of_blocks(module: Module, blocks: list[CodeBlock], results: tuple[str, ...]) -> Iterator[Edge]:
    """Yield the data flow in `blocks`; `results` are those of the operation around them."""
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
                yield from _loop_data_flow(op)
            elif op.name not in _NON_ADDRESS_RESULTS:
                yield from ((value, result) for value in op.operands for result in op.results)
            for region in op.regions:
                yield from _data_flow_of_blocks(module, region, op.results)


def _loop_data_flow(op: Op) -> Iterator[Edge]:
    """Yield what a loop carries from one round to the next, and out of it."""
    if op.name not in ("scf.for", "scf.while"):
        return
    names = op.binds[op.name == "scf.for" :]
    starts = op.operands[3:] if op.name == "scf.for" else op.operands
    yield from zip(starts, names, strict=False)
    yield from zip(names, op.results, strict=False)
    yield from zip(_terminator_operands(op.regions[-1]), names, strict=False)
    if op.name == "scf.while":
        yield from zip(_terminator_operands(op.regions[0])[1:], op.regions[1][0].names, strict=False)


def _terminator_operands(region: list[CodeBlock]) -> tuple[str, ...]:
    """Return the operands of the last operation of a region."""
    return region[-1].ops[-1].operands if region[-1].ops else ()


def callee(op: Op) -> str:
    """Return the function called by ``tt.call @name(…)``; a name in quotes may contain brackets."""
    name = op.text.split("@", 1)[1]
    return name.split('"')[1] if name.startswith('"') else name.split("(")[0].strip()
