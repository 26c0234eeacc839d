"""Products with 2:4 sparse matrices in CUTLASS' format."""

from __future__ import annotations

import torch

from gapless.emulation.kernels import kernel
from gapless.torch_internals import semi_structured

Tensor = torch.Tensor


def _dense(values: Tensor, meta: Tensor) -> Tensor:
    dense: Tensor = semi_structured.sparse_semi_structured_to_dense_cutlass(values, meta)
    return dense


@kernel("_to_sparse_semi_structured")
def _to_sparse(dense: Tensor) -> tuple[Tensor, Tensor]:
    values, meta = semi_structured.sparse_semi_structured_from_dense_cutlass(dense)
    return values, meta


@kernel("_sparse_semi_structured_mm")
def _mm(mat1: Tensor, mat1_meta: Tensor, mat2: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    return _product(_dense(mat1, mat1_meta), mat2, out_dtype)


@kernel("_sparse_semi_structured_addmm")
def _addmm(
    input: Tensor,
    mat1: Tensor,
    mat1_meta: Tensor,
    mat2: Tensor,
    *,
    alpha: float = 1,
    beta: float = 1,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return `alpha` times the product plus `beta` times `input`, which has one number per row."""
    product = _product(_dense(mat1, mat1_meta), mat2, out_dtype)
    return alpha * product + beta * input.unsqueeze(-1).to(product.dtype)


@kernel("_sparse_semi_structured_linear")
def _linear(
    input: Tensor,
    weight: Tensor,
    meta: Tensor,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    out = _product(input, _dense(weight, meta).t(), out_dtype)
    if bias is not None:
        out = out + bias
    return {"relu": torch.relu, "silu": torch.nn.functional.silu}.get(activation or "", torch.clone)(out)


def _product(left: Tensor, right: Tensor, out_dtype: torch.dtype | None) -> Tensor:
    if not left.is_floating_point():
        return (left.to(torch.int32) @ right.to(torch.int32)).to(out_dtype or left.dtype)
    return (left.float() @ right.float()).to(out_dtype or left.dtype)


@kernel("_cslt_compress")
def _compress(input: Tensor) -> Tensor:
    """Return zeros of the size that cuSPARSELt needs for values and indices; nothing is compressed."""
    factor = 9 if input.is_floating_point() and input.element_size() > 1 else 10
    return input.new_zeros(input.numel() * factor // 16)


@kernel("_cslt_sparse_mm_search")
def _search_algorithm(
    compressed_A: Tensor,  # noqa: N803 - the schema's
    dense_B: Tensor,  # noqa: N803
    bias: Tensor | None = None,
    alpha: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    transpose_result: bool = False,
) -> int:
    """Return the index of the fastest algorithm: always the first."""
    return 0
