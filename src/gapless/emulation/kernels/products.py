"""Matrix products with another result dtype than their operands', and with packed weights."""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation.kernels import kernel

Tensor = torch.Tensor
_HALVES = (torch.float16, torch.bfloat16)


def _widen(out_dtype: torch.dtype, *operands: Tensor) -> list[Tensor]:
    """Cast the operands to the dtype the kernel accumulates in.

    Raises:
        RuntimeError: cuBLAS has no product of these dtypes.
    """
    operand_dtype = operands[-1].dtype
    if out_dtype != operand_dtype and not (out_dtype is torch.float32 and operand_dtype in _HALVES):
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    return [operand.to(out_dtype) for operand in operands]


@kernel("mm.dtype")
def _mm(self: Tensor, mat2: Tensor, out_dtype: torch.dtype) -> Tensor:
    return torch.mm(*_widen(out_dtype, self, mat2))


@kernel("bmm.dtype")
def _bmm(self: Tensor, mat2: Tensor, out_dtype: torch.dtype) -> Tensor:
    return torch.bmm(*_widen(out_dtype, self, mat2))


@kernel("addmm.dtype")
def _addmm(
    self: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: torch.dtype, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    return torch.addmm(*_widen(out_dtype, self, mat1, mat2), beta=beta, alpha=alpha)


@kernel("baddbmm.dtype")
def _baddbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, out_dtype: torch.dtype, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    return torch.baddbmm(*_widen(out_dtype, self, batch1, batch2), beta=beta, alpha=alpha)


@kernel("_scaled_grouped_mm")
def _scaled_grouped_mm(
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """Grouped products of 8-bit matrices, with a scale per row of `self` and per column of `mat2`."""
    left, right = self.float(), mat2.float()
    if self.dim() == mat2.dim() == 2:  # groups split the inner dimension; each has its own scales
        ends = [] if offs is None else offs.tolist()
        rows, columns = scale_a.view(len(ends), -1, 1), scale_b.view(len(ends), 1, -1)
        parts = [
            (left[:, begin:end] * rows[group]) @ (right[begin:end] * columns[group])
            for group, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))
        ]
        return torch.stack(parts).to(out_dtype or torch.bfloat16)
    left = left * scale_a.view(*left.shape[:-1], 1)
    right = right * scale_b.view(*right.shape[:-2], 1, right.shape[-1])
    return grouped_product(left, right, offs).to(out_dtype or torch.bfloat16)


def grouped_product(left: Tensor, right: Tensor, offs: Tensor | None) -> Tensor:
    """Multiply group by group; `offs` are the groups' ends along rows of `left` or columns of `right`."""
    if left.dim() == right.dim() == 3:
        return left @ right
    ends = [] if offs is None else offs.tolist()
    ranges = list(enumerate(zip([0, *ends], ends, strict=False)))
    if left.dim() == 2:
        out = left.new_zeros(left.shape[0], right.shape[-1])
        for group, (begin, end) in ranges:
            out[begin:end] = left[begin:end] @ right[group]
        return out
    out = left.new_zeros(left.shape[1], right.shape[1])
    for group, (begin, end) in ranges:
        out[:, begin:end] = left[group] @ right[:, begin:end]
    return out


# -- weights of four bits ----------------------------------------------------------------------------


@kernel("_convert_weight_to_int4pack")
def _pack_int4(self: Tensor, innerKTiles: int) -> Tensor:  # noqa: N803 - the schema's
    """Reshape int4 pairs, (n, k / 2) bytes, to CUDA's packed shape; the element order differs from CUDA's."""
    rows, half = self.shape
    tiles = half * 2 // (innerKTiles * 16)
    return self.contiguous().view(torch.int32).reshape(rows // 8, tiles, 32, innerKTiles // 2)


@kernel("_weight_int4pack_mm")
def _int4_mm(self: Tensor, mat2: Tensor, qGroupSize: int, qScaleAndZeros: Tensor) -> Tensor:  # noqa: N803
    packed = mat2.contiguous().view(torch.uint8).reshape(mat2.shape[0] * 8, -1)
    numbers = torch.stack((packed >> 4, packed & 15), -1).flatten(1).float() - 8
    scale, zero = qScaleAndZeros.float().unbind(-1)
    scale, zero = (parameter.t().repeat_interleave(qGroupSize, 1) for parameter in (scale, zero))
    return (self.float() @ (numbers * scale + zero).t()).to(self.dtype)


@kernel("_mixed_dtypes_linear")
def _mixed_dtypes_linear(
    input: Tensor, weight: Tensor, scale: Tensor, *, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """Linear layer with an integer weight (k, n), scaled per column; CUTLASS' element order is not needed."""
    out = input.float() @ (weight.float()[: input.shape[-1]] * scale.float())
    if bias is not None:
        out = out + bias
    out = {"relu": torch.relu, "silu": torch.nn.functional.silu}.get(activation or "", torch.clone)(out)
    return out.to(input.dtype)
