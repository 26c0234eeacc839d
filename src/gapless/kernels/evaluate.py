"""Running a kernel: `Kernel`, made once from its TTIR, and `evaluate`, for one launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from gapless.kernels import (
    accesses,
    arithmetic,
    atomics,
    casts,
    control,
    folds,
    hopper,
    libdevice,
    products,
    ptx,
    shaping,
    shared,
)
from gapless.kernels.machine import Cost, Machine, OverBudget, prepare
from gapless.kernels.nodes import every_op
from gapless.kernels.parse import TtirError, parse
from gapless.kernels.values import Descriptor, Heap, Memory, Pointer, Unsupported, dtype_of
from gapless.kernels.written import touched

OPERATIONS = (
    accesses,
    arithmetic,
    atomics,
    casts,
    control,
    folds,
    hopper,
    libdevice,
    products,
    ptx,
    shaping,
    shared,
)
"""The modules whose operations are registered by importing them."""

BUDGET = 2_000_000_000
"""Elements that one launch may compute: a few seconds on one core."""
_SLICE = 1 << 18
"""Elements of the largest block that programs run in step have together."""
_WAITING = frozenset({"tt.load", "tt.atomic_rmw", "tt.atomic_cas"})


class Kernel:
    """A kernel that can be evaluated: its TTIR, parsed, and what it reads and writes.

    `refusal` says what is not known of it, "" where it can be evaluated.
    """

    def __init__(self, ttir: str) -> None:
        self.refusal = ""
        try:
            self.module = parse(ttir)
        except TtirError as error:
            raise Unsupported(f"TTIR that is not understood ({error})") from error
        self.touched = touched(self.module)
        self.largest = 1
        self.one_by_one = False
        for function in self.module.functions.values():
            ops = every_op(function.blocks)
            kinds = [kind for op in ops for kind in (*op.given, *op.made)]
            self.largest = max([self.largest, *(math.prod(shared.room_type(kind).shape) for kind in kinds)])
            self.one_by_one = self.one_by_one or any(_waits(op) for op in ops)
            try:
                prepare(function.blocks)
            except Unsupported as error:
                self.refusal = str(error)

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of its arguments."""
        return self.module.kernel.types


def _waits(op: Any) -> bool:
    """Whether it may wait for another program: such kernels run one program after the other."""
    if op.name == "tt.atomic_cas":
        return True
    return op.name == "scf.while" and any(
        inner.name in _WAITING for region in op.regions for inner in every_op(region)
    )


def evaluate(
    kernel: Kernel,
    arguments: Sequence[Any],
    grid: Sequence[int],
    *,
    budget: int = BUDGET,
    find: Callable[[], Iterable[Any]] | None = None,
) -> Cost:
    """Run all programs of `grid`; tensors among `arguments` are read and written in place.

    An argument is a tensor, a number, or a `(tensor, sizes, strides, padding)` for a descriptor (whose sizes
    and strides follow as arguments of their own). `find` gives all storages there are, for kernels that have
    addresses as numbers.

    Raises:
        Unsupported: it does something that is not known.
        OverBudget: it computes more than `budget` elements; part of it may have been written.
    """
    if kernel.refusal:
        raise Unsupported(kernel.refusal)
    x, y, z = (*map(int, grid), 1, 1)[:3]
    programs = x * y * z
    cost = Cost()
    if programs == 0:
        return cost
    with torch.no_grad():
        heap = Heap(find)
        function = kernel.module.kernel
        memories: dict[int, Memory] = {}
        values = [
            _argument(kind, given, memories) for kind, given in zip(function.types, arguments, strict=True)
        ]
        heap.add(memories.values())
        step = 1 if kernel.one_by_one else max(1, _SLICE // kernel.largest)
        for first in range(0, programs, step):
            machine = Machine(
                kernel.module, (x, y, z), first, min(first + step, programs), heap, cost, budget
            )
            machine.bind(function.names, values)
            control.run(machine, function.blocks)
            if first == 0 and cost.work * math.ceil(programs / step) > budget:
                raise OverBudget(cost.times(programs / machine.last))
    return cost


def _argument(kind: Any, given: Any, memories: dict[int, Memory]) -> Any:
    if kind.element.startswith("!tt.tensordesc"):
        tensor, sizes, strides, padding = given
        element = accesses.block_of(kind).element
        return Descriptor(
            _pointer(element, tensor, memories),
            tuple(torch.tensor([int(size)]) for size in sizes),
            tuple(torch.tensor([int(stride)]) for stride in strides),
            padding,
        )
    if kind.pointee:
        if given is None:
            return Pointer(kind.pointee, None, torch.zeros(1, dtype=torch.int64))
        if isinstance(given, int):
            return Pointer(kind.pointee, None, torch.tensor([given]))
        return _pointer(kind.pointee, given, memories)
    dtype = dtype_of(kind.element)
    if not dtype.is_floating_point and isinstance(given, int) and dtype is not torch.bool:
        bits = dtype.itemsize * 8
        given = (int(given) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)  # unsigned ones wrap
    return torch.tensor([given], dtype=dtype)


def _pointer(element: str, tensor: torch.Tensor, memories: dict[int, Memory]) -> Pointer:
    storage = tensor.untyped_storage()
    memory = memories.setdefault(storage.data_ptr(), Memory(storage))
    size = 8 if element.startswith("!") else dtype_of(element).itemsize
    at = tensor.storage_offset() * tensor.element_size() // size
    return Pointer(element, memory, torch.tensor([at]))


__all__ = ["BUDGET", "Cost", "Kernel", "OverBudget", "Unsupported", "evaluate"]
