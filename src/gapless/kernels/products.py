"""Matrix products."""

from __future__ import annotations

import torch

from gapless.kernels.machine import Machine, operation
from gapless.kernels.nodes import Op
from gapless.kernels.values import Tensor, dtype_of, expanded


@operation("tt.dot")
def dot(machine: Machine, op: Op) -> Tensor:
    a, b, c = machine.get(op)
    shapes = [kind.shape for kind in op.given]
    a, b = expanded(a, shapes[0]), expanded(b, shapes[1])
    return multiplied(machine, op, a, b, op.given[0].element) + c


def multiplied(machine: Machine, op: Op, a: Tensor, b: Tensor, element: str) -> Tensor:
    """``a @ b`` of blocks with all their elements, computed in fp32 (fp64 for doubles and integers)."""
    out = dtype_of(op.type.element)
    wide = torch.float64 if out is torch.float64 or not out.is_floating_point else torch.float32
    _count(machine, op, a.shape[1:], b.shape[1:], element)
    product: Tensor = torch.matmul(a.to(wide), b.to(wide)) if a.dtype.is_floating_point else _integers(a, b)
    machine.cost.work += 2 * (a.numel() + b.numel())
    return product.to(out)


def _integers(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a.double(), b.double()).long()  # exact: the factors have 8 bits


def _count(machine: Machine, op: Op, a: tuple[int, ...], b: tuple[int, ...], element: str) -> None:
    cost = machine.cost
    programs = machine.count if machine.active is None else int(machine.active.sum())
    flops = 2 * programs * b[-1]
    for size in a:
        flops *= size
    cost.flops += flops
    cost.work += flops // 16
    if not cost.products:
        cost.products = element
        cost.tf32 = "inputPrecision = tf32" in op.text
