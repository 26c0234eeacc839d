"""`Machine`: the programs of a part of the grid, run in step, operation by operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gapless.kernels.nodes import Block, Module, Op
from gapless.kernels.ramps import full
from gapless.kernels.values import Heap, Pointer, Tensor, Unsupported, spread

Handler = Callable[["Machine", Op], Any]

HANDLERS: dict[str, Handler] = {}
"""What each operation does, by its name; gives its result, or all of them where there are several."""

TERMINATORS = frozenset({
    "cf.br", "cf.cond_br", "scf.condition", "scf.yield", "tt.map_elementwise.return", "tt.reduce.return",
    "tt.return", "tt.scan.return", "ub.unreachable", "llvm.unreachable",
})  # fmt: skip
_NOTHING = Op("scf.yield")
_LEAST = 2_000
"""Elements whose work equals what an operation costs by being called."""


def operation(*names: str) -> Callable[[Handler], Handler]:
    """Register what the operations of these names do."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


@dataclass
class Cost:
    """What a launch asked of the device: bytes by argument's memory, and multiplications and additions."""

    read: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)
    flops: int = 0
    products: str = ""
    """Element type of the products that take most."""
    tf32: bool = False
    work: int = 0
    """Elements computed here, which is what evaluating takes."""

    def times(self, factor: float) -> Cost:
        """The cost of so many times as much."""
        return replace(
            self,
            read={key: round(count * factor) for key, count in self.read.items()},
            written={key: round(count * factor) for key, count in self.written.items()},
            flops=round(self.flops * factor),
        )


class OverBudget(Exception):
    """The kernel computes more than it may; `cost` is that of the whole launch, as far as was seen."""

    def __init__(self, cost: Cost) -> None:
        super().__init__()
        self.cost = cost


class Machine:
    """Runs the programs `first` to `last` (exclusive) of `grid`.

    `active` says which programs are at the operation that runs: None for all of them.
    """

    def __init__(
        self,
        module: Module,
        grid: tuple[int, int, int],
        first: int,
        last: int,
        heap: Heap,
        cost: Cost,
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
        """What the operands of `op` are, ramps written out."""
        values = self.values
        return [full(values[name]) for name in op.operands]

    def raw(self, op: Op) -> list[Any]:
        """What the operands of `op` are."""
        values = self.values
        return [values[name] for name in op.operands]

    def all_of(self, names: Iterable[str]) -> list[Any]:
        values = self.values
        return [values[name] for name in names]

    def bind(self, names: Sequence[str], values: Iterable[Any]) -> None:
        self.values.update(zip(names, values, strict=False))

    def whole(self, block: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A block with all its elements, and all programs."""
        return block.expand(self.count, *shape)

    def allowed(self, mask: Tensor | None, rank: int) -> Tensor | None:
        """Where blocks of that rank may be stored: `mask` in the programs that are at this operation."""
        if self.active is None:
            return mask
        active = spread(self.active, rank)
        return active if mask is None else mask & active

    # -- running -------------------------------------------------------------------------------------

    def block(self, block: Block) -> Op:
        """Run a block up to its last operation, which says where to go on, and give that."""
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
                    cost.work += out.numel() + _LEAST
                elif type(out) is Pointer:
                    cost.work += out.at.numel() + _LEAST
                else:
                    cost.work += _LEAST
            elif results:
                for name, value in zip(results, out, strict=True):
                    values[name] = value
                cost.work += _LEAST
            else:
                cost.work += _LEAST
            if cost.work > self.budget:
                raise OverBudget(cost.times(math.prod(self.grid) / self.last))
            for name in op.last:
                values.pop(name, None)
        return _NOTHING  # what yields nothing is not printed


def prepare(blocks: list[Block]) -> None:
    """Give each operation its handler, and say after which of them a value is not needed any more.

    Raises:
        Unsupported: an operation that is not known.
    """
    for block in blocks:
        needed: set[str] = set()
        inside = {name for op in block.ops for name in op.results}
        inside |= set(block.names)
        for op in reversed(block.ops):
            asked = set(op.operands) | {name for _, names in op.targets for name in names}
            for region in op.regions:
                asked |= _asked(region)
                prepare(region)
            if op.name not in TERMINATORS:
                op.run = HANDLERS.get(op.name)
                if op.run is None:
                    raise Unsupported(f"the operation {op.name}")
                done = (asked | set(op.results)) - needed
                # In a function of several blocks others may ask: there all is kept.
                op.last = tuple(done & inside) if len(blocks) == 1 else ()
            needed |= asked


def _asked(region: list[Block]) -> set[str]:
    found: set[str] = set()
    for block in region:
        for op in block.ops:
            found.update(op.operands)
            for _, names in op.targets:
                found.update(names)
            for inner in op.regions:
                found |= _asked(inner)
    return found
