"""Hopper's asynchronous operations as Gluon uses them: copies through descriptors, products, barriers.

Programs run one operation after the other here: each copy is complete when the next operation starts, and a
barrier never waits.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless.kernels.accesses import block_type, descriptor_pointers, load_descriptor_block
from gapless.kernels.machine import KernelMachine, operation
from gapless.kernels.memory import scatter_elements, store_block
from gapless.kernels.nodes import Op
from gapless.kernels.products import matrix_product
from gapless.kernels.shared import SharedRoom, room_contents
from gapless.kernels.values import Tensor, Unsupported, expand_block, spread_over_block


@operation("ttng.async_tma_copy_global_to_local")
def copy_in(machine: KernelMachine, op: Op) -> None:
    """Copy a block of the descriptor's tensor to shared memory: ``%desc[%x, %y] %room, %barrier,
    %predicate``."""
    descriptor, *rest = machine.get(op)
    shape = block_type(op.operand_types[0]).shape
    at, operands = rest[: len(shape)], rest[len(shape) :]
    if len(operands) != 3:
        raise Unsupported(f"{op.name} of {len(op.operands)} operands")
    room, _, predicate = operands
    value = load_descriptor_block(machine, descriptor, at, shape)
    where = machine.active_mask(spread_over_block(predicate, len(shape)), len(shape))
    scatter_elements(room.base.memory, room.pointers().places, value.reshape(-1, *room.sizes), where)


@operation("ttng.async_tma_copy_local_to_global")
def copy_out(machine: KernelMachine, op: Op) -> None:
    descriptor, *at, room = machine.get(op)
    shape = block_type(op.operand_types[0]).shape
    pointer, inside = descriptor_pointers(descriptor, at, shape)
    store_block(machine, pointer, room_contents(machine, room).reshape(-1, *shape), inside, shape)


@operation("ttng.warp_group_dot")
def warp_group_dot(machine: KernelMachine, op: Op) -> Tensor:
    """Return ``a @ b + c``, without `c` where a fourth operand is false; `b`, and possibly `a`, is in shared
    memory."""
    a, b, c, *used = machine.get(op)
    right = room_contents(machine, b)
    left = (
        room_contents(machine, a)
        if isinstance(a, SharedRoom)
        else expand_block(a, (op.type.shape[0], b.sizes[0]))
    )
    product = matrix_product(machine, op, left, right, b.base.element)
    return product + (torch.where(spread_over_block(used[0], 2), c, 0) if used else c)


@operation("ttng.warp_group_dot_wait")
def wait_for_products(machine: KernelMachine, op: Op) -> list[Any]:
    return machine.raw(op)


@operation(
    "ttng.init_barrier", "ttng.inval_barrier", "ttng.barrier_expect", "ttng.wait_barrier",
    "ttng.arrive_barrier", "ttng.async_tma_store_wait", "ttng.fence_async_shared",
    "ttng.fence_mbarrier_init_release_cluster", "ttng.async_copy_mbarrier_arrive",
)  # fmt: skip
def pass_barrier(machine: KernelMachine, op: Op) -> None:
    """Do nothing: whatever is waited for is complete."""
