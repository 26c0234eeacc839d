"""Matrix products."""

from __future__ import annotations

import torch

from gapless.kernels.machine import KernelMachine, operation
from gapless.kernels.nodes import Op
from gapless.kernels.values import Tensor, dtype_of, expand_block


@operation("tt.dot")
def dot(machine: KernelMachine, op: Op) -> Tensor:
    a, b, c = machine.get(op)
    shapes = [kind.shape for kind in op.operand_types]
    a, b = expand_block(a, shapes[0]), expand_block(b, shapes[1])
    return matrix_product(machine, op, a, b, op.operand_types[0].element) + c


def matrix_product(machine: KernelMachine, op: Op, a: Tensor, b: Tensor, element: str) -> Tensor:
    """Return ``a @ b`` of whole blocks, computed in fp32 (fp64 for doubles and integers)."""
    out = dtype_of(op.type.element)
    wide = torch.float64 if out is torch.float64 or not out.is_floating_point else torch.float32
    _count_flops(machine, op, a.shape[1:], b.shape[1:], element)
    product: Tensor = (
        torch.matmul(a.to(wide), b.to(wide)) if a.dtype.is_floating_point else _integer_product(a, b)
    )
    machine.cost.work += 2 * (a.numel() + b.numel())
    return product.to(out)


def _integer_product(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a.double(), b.double()).long()  # exact: the factors have 8 bits


def _count_flops(
    machine: KernelMachine, op: Op, a: tuple[int, ...], b: tuple[int, ...], element: str
) -> None:
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
