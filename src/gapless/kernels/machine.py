"""`KernelMachine`: runs the programs of a part of the grid in step, operation by operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gapless.kernels.nodes import CodeBlock, Module, Op
from gapless.kernels.ramps import expand_ramp
from gapless.kernels.values import Heap, Pointer, Tensor, Unsupported, spread_over_block

Handler = Callable[["KernelMachine", Op], Any]

HANDLERS: dict[str, Handler] = {}
"""The function that runs each operation, by name; returns its result, or a list of several."""

TERMINATORS = frozenset({
    "cf.br", "cf.cond_br", "scf.condition", "scf.yield", "tt.map_elementwise.return", "tt.reduce.return",
    "tt.return", "tt.scan.return", "ub.unreachable", "llvm.unreachable",
})  # fmt: skip
_EMPTY_YIELD = Op("scf.yield")
_ELEMENTS_PER_CALL = 2_000
"""Elements whose work equals the overhead of calling an operation."""


def operation(*names: str) -> Callable[[Handler], Handler]:
    """Register a function as the handler of the operations of these names."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


@dataclass
class LaunchCost:
    """Work of a launch: bytes moved by each argument's memory, and multiplications and additions."""

    read: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)
    flops: int = 0
    products: str = ""
    """Element type of the matrix products."""
    tf32: bool = False
    work: int = 0
    """Elements computed by the evaluation."""

    def scaled(self, factor: float) -> LaunchCost:
        """Return this cost times `factor`."""
        return replace(
            self,
            read={key: round(count * factor) for key, count in self.read.items()},
            written={key: round(count * factor) for key, count in self.written.items()},
            flops=round(self.flops * factor),
        )


class OverBudget(Exception):
    """The kernel exceeds its budget; `cost` is extrapolated to the whole launch."""

    def __init__(self, cost: LaunchCost) -> None:
        super().__init__()
        self.cost = cost


class KernelMachine:
    """Runs the programs `first` to `last` (exclusive) of `grid`.

    `active` is the mask of programs that run the current operation; None means all of them.
    """

    def __init__(
        self,
        module: Module,
        grid: tuple[int, int, int],
        first: int,
        last: int,
        heap: Heap,
        cost: LaunchCost,
        budget: int,
    ) -> None:
        self.module = module
        self.grid = grid
        self.last = last
        self.count = last - first
        self.heap = heap
        self.cost = cost
        self.budget = budget
        self.active: Tensor | None = None
        self.values: dict[str, Any] = {}
        numbers = torch.arange(first, last)
        x, y, _ = grid
        self.ids = [
            part[:1].clone() if bool((part == part[0]).all()) else part
            for part in ((numbers % x).int(), (numbers // x % y).int(), (numbers // (x * y)).int())
        ]

    # -- values --------------------------------------------------------------------------------------

    def get(self, op: Op) -> list[Any]:
        """Return the operands of `op`, with ramps expanded."""
        values = self.values
        return [expand_ramp(values[name]) for name in op.operands]

    def raw(self, op: Op) -> list[Any]:
        """Return the operands of `op`, ramps included."""
        values = self.values
        return [values[name] for name in op.operands]

    def values_of(self, names: Iterable[str]) -> list[Any]:
        values = self.values
        return [values[name] for name in names]

    def bind(self, names: Sequence[str], values: Iterable[Any]) -> None:
        self.values.update(zip(names, values, strict=False))

    def expand_fully(self, block: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return a block with all its elements for all programs."""
        return block.expand(self.count, *shape)

    def active_mask(self, mask: Tensor | None, rank: int) -> Tensor | None:
        """Return `mask` limited to the active programs, for blocks of that rank; None if neither limits."""
        if self.active is None:
            return mask
        active = spread_over_block(self.active, rank)
        return active if mask is None else mask & active

    # -- running -------------------------------------------------------------------------------------

    def block(self, block: CodeBlock) -> Op:
        """Run a block up to its terminator, and return that operation."""
        values, cost = self.values, self.cost
        for op in block.ops:
            if op.name in TERMINATORS:
                return op
            out = op.run(self, op)  # type: ignore[misc]
            results = op.results
            if len(results) == 1:
                if type(out) is list:
                    out = out[0]
                values[results[0]] = out
                if type(out) is Tensor:
                    cost.work += out.numel() + _ELEMENTS_PER_CALL
                elif type(out) is Pointer:
                    cost.work += out.at.numel() + _ELEMENTS_PER_CALL
                else:
                    cost.work += _ELEMENTS_PER_CALL
            elif results:
                for name, value in zip(results, out, strict=True):
                    values[name] = value
                cost.work += _ELEMENTS_PER_CALL
            else:
                cost.work += _ELEMENTS_PER_CALL
            if cost.work > self.budget:
                raise OverBudget(cost.scaled(math.prod(self.grid) / self.last))
            for name in op.last_uses:
                values.pop(name, None)
        return _EMPTY_YIELD  # an empty yield is not printed


def prepare(blocks: list[CodeBlock]) -> None:
    """Set the handler of each operation, and after which operation a value is no longer needed.

    Raises:
        Unsupported: an operation is not known.
    """
    for block in blocks:
        needed: set[str] = set()
        inside = {name for op in block.ops for name in op.results}
        inside |= set(block.names)
        for op in reversed(block.ops):
            used = set(op.operands) | {name for _, names in op.targets for name in names}
            for region in op.regions:
                used |= _used_names(region)
                prepare(region)
            if op.name not in TERMINATORS:
                op.run = HANDLERS.get(op.name)
                if op.run is None:
                    raise Unsupported(f"the operation {op.name}")
                unneeded = (used | set(op.results)) - needed
                # In a function of several blocks other blocks may use a value: all are kept.
                op.last_uses = tuple(unneeded & inside) if len(blocks) == 1 else ()
            needed |= used


def _used_names(region: list[CodeBlock]) -> set[str]:
    used: set[str] = set()
    for block in region:
        for op in block.ops:
            used.update(op.operands)
            for _, names in op.targets:
                used.update(names)
            for inner in op.regions:
                used |= _used_names(inner)
    return used
