"""Run kernels: `Kernel` is made once from TTIR, and `evaluate` runs one launch."""

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
from gapless.kernels.machine import KernelMachine, LaunchCost, OverBudget, prepare
from gapless.kernels.nodes import all_ops
from gapless.kernels.parse import TtirError, parse
from gapless.kernels.values import Descriptor, Heap, Pointer, StorageView, Unsupported, dtype_of
from gapless.kernels.written import find_argument_use

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
"""Modules whose operations are registered by importing them."""

MAX_ELEMENTS = 2_000_000_000
"""Elements that one launch may compute: a few seconds on one core."""
_MAX_SLICE_ELEMENTS = 1 << 18
"""Elements of the largest block over all programs that run in step; larger slices leave the caches."""
_POLLING_OPERATIONS = frozenset({"tt.load", "tt.atomic_rmw", "tt.atomic_cas"})
"""Operations with which a loop may wait for another program."""


class Kernel:
    """A kernel that can be evaluated: its parsed TTIR, and which arguments it reads and writes.

    `refusal` says why it cannot be evaluated, "" if it can.
    """

    def __init__(self, ttir: str) -> None:
        self.refusal = ""
        try:
            self.module = parse(ttir)
        except TtirError as error:
            raise Unsupported(f"TTIR that is not understood ({error})") from error
        self.touched = find_argument_use(self.module)
        self.largest = 1
        self.one_by_one = False
        for function in self.module.functions.values():
            ops = all_ops(function.blocks)
            kinds = [kind for op in ops for kind in (*op.operand_types, *op.result_types)]
            self.largest = max([self.largest, *(math.prod(shared.room_type(kind).shape) for kind in kinds)])
            self.one_by_one = self.one_by_one or any(_may_wait(op) for op in ops)
            try:
                prepare(function.blocks)
            except Unsupported as error:
                self.refusal = str(error)

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of its arguments."""
        return self.module.kernel.types


def _may_wait(op: Any) -> bool:
    """Whether the operation may wait for another program: such kernels run one program after the other."""
    if op.name == "tt.atomic_cas":
        return True
    return op.name == "scf.while" and any(
        inner.name in _POLLING_OPERATIONS for region in op.regions for inner in all_ops(region)
    )


def evaluate(
    kernel: Kernel,
    arguments: Sequence[Any],
    grid: Sequence[int],
    *,
    budget: int = MAX_ELEMENTS,
    find: Callable[[], Iterable[Any]] | None = None,
) -> LaunchCost:
    """Run all programs of `grid`; tensors among `arguments` are read and written in place.

    An argument is a tensor, a number, or `(tensor, sizes, strides, padding)` for a descriptor (whose sizes
    and strides follow as arguments of their own). `find` returns all existing storages, for kernels that use
    addresses as numbers.

    Raises:
        Unsupported: the kernel does something that cannot be evaluated.
        OverBudget: it computes more than `budget` elements; part of its results may have been written.
    """
    if kernel.refusal:
        raise Unsupported(kernel.refusal)
    x, y, z = (*map(int, grid), 1, 1)[:3]
    programs = x * y * z
    cost = LaunchCost()
    if programs == 0:
        return cost
    with torch.no_grad():
        heap = Heap(find)
        function = kernel.module.kernel
        memories: dict[int, StorageView] = {}
        values = [
            _make_argument(kind, argument, memories)
            for kind, argument in zip(function.types, arguments, strict=True)
        ]
        heap.add(memories.values())
        step = 1 if kernel.one_by_one else max(1, _MAX_SLICE_ELEMENTS // kernel.largest)
        for first in range(0, programs, step):
            machine = KernelMachine(
                kernel.module, (x, y, z), first, min(first + step, programs), heap, cost, budget
            )
            machine.bind(function.names, values)
            control.run_blocks(machine, function.blocks)
            if first == 0 and cost.work * math.ceil(programs / step) > budget:
                raise OverBudget(cost.scaled(programs / machine.last))
    return cost


def _make_argument(kind: Any, argument: Any, memories: dict[int, StorageView]) -> Any:
    if kind.element.startswith("!tt.tensordesc"):
        tensor, sizes, strides, padding = argument
        element = accesses.block_type(kind).element
        return Descriptor(
            _make_pointer(element, tensor, memories),
            tuple(torch.tensor([int(size)]) for size in sizes),
            tuple(torch.tensor([int(stride)]) for stride in strides),
            padding,
        )
    if kind.pointee:
        if argument is None:
            return Pointer(kind.pointee, None, torch.zeros(1, dtype=torch.int64))
        if isinstance(argument, int):
            return Pointer(kind.pointee, None, torch.tensor([argument]))
        return _make_pointer(kind.pointee, argument, memories)
    dtype = dtype_of(kind.element)
    if not dtype.is_floating_point and isinstance(argument, int) and dtype is not torch.bool:
        bits = dtype.itemsize * 8
        argument = (int(argument) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)  # unsigned values wrap
    return torch.tensor([argument], dtype=dtype)


def _make_pointer(element: str, tensor: torch.Tensor, memories: dict[int, StorageView]) -> Pointer:
    storage = tensor.untyped_storage()
    memory = memories.setdefault(storage.data_ptr(), StorageView(storage))
    size = 8 if element.startswith("!") else dtype_of(element).itemsize
    at = tensor.storage_offset() * tensor.element_size() // size
    return Pointer(element, memory, torch.tensor([at]))


__all__ = ["MAX_ELEMENTS", "Kernel", "LaunchCost", "OverBudget", "Unsupported", "evaluate"]
