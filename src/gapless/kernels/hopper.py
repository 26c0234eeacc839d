"""What Hopper does in the background as Gluon asks for it: copies through descriptors, products, barriers.

A program does one thing after the other here: what is begun has ended, and a barrier never waits.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless.kernels.accesses import block_of, descriptor_block, descriptor_places
from gapless.kernels.machine import Machine, operation
from gapless.kernels.memory import scattered, stored
from gapless.kernels.nodes import Op
from gapless.kernels.products import multiplied
from gapless.kernels.shared import Room, held
from gapless.kernels.values import Tensor, Unsupported, expanded, spread


@operation("ttng.async_tma_copy_global_to_local")
def copy_in(machine: Machine, op: Op) -> None:
    """``%desc[%x, %y] %room, %barrier, %predicate``: a block of what the descriptor describes."""
    descriptor, *rest = machine.get(op)
    shape = block_of(op.given[0]).shape
    at, others = rest[: len(shape)], rest[len(shape) :]
    if len(others) != 3:
        raise Unsupported(f"{op.name} of {len(op.operands)} operands")
    room, _, wanted = others
    value = descriptor_block(machine, descriptor, at, shape)
    where = machine.allowed(spread(wanted, len(shape)), len(shape))
    scattered(room.base.memory, room.pointers().places, value.reshape(-1, *room.sizes), where)


@operation("ttng.async_tma_copy_local_to_global")
def copy_out(machine: Machine, op: Op) -> None:
    descriptor, *at, room = machine.get(op)
    shape = block_of(op.given[0]).shape
    pointer, inside = descriptor_places(descriptor, at, shape)
    stored(machine, pointer, held(machine, room).reshape(-1, *shape), inside, shape)


@operation("ttng.warp_group_dot")
def warp_group_dot(machine: Machine, op: Op) -> Tensor:
    """``a @ b + c``; without `c` where a fourth operand says so. `b` is in shared memory, and `a` may be."""
    a, b, c, *used = machine.get(op)
    right = held(machine, b)
    left = held(machine, a) if isinstance(a, Room) else expanded(a, (op.type.shape[0], b.sizes[0]))
    product = multiplied(machine, op, left, right, b.base.element)
    return product + (torch.where(spread(used[0], 2), c, 0) if used else c)


@operation("ttng.warp_group_dot_wait")
def waited(machine: Machine, op: Op) -> list[Any]:
    return machine.raw(op)


@operation(
    "ttng.init_barrier", "ttng.inval_barrier", "ttng.barrier_expect", "ttng.wait_barrier",
    "ttng.arrive_barrier", "ttng.async_tma_store_wait", "ttng.fence_async_shared",
    "ttng.fence_mbarrier_init_release_cluster", "ttng.async_copy_mbarrier_arrive",
)  # fmt: skip
def passed(machine: Machine, op: Op) -> None:
    """What is waited for has been done."""
