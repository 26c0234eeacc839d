"""Operators with rules of their own for missing values: reads, checks, sparse parts, GradScaler's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.dry.filling import untouched_tensor
from gapless.emulation.dry.guesses.guess import anything
from gapless.emulation.dry.kinds import OperatorKind
from gapless.emulation.dry.operator_calls import Compute
from gapless.emulation.placement.placement import sparse_parts

Special = Callable[[Any, OperatorKind, Compute, int, Any, dict[str, Any]], Any]
_MAX_CHECKED_ELEMENTS = 1 << 22
"""Elements of a gradient checked for infinities, to bound the time; a larger one counts as finite."""


def _read(
    values: Any, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    record = values.record_of(args[0])
    if record is None:
        return compute(index, args, kwargs)
    if record.filled:
        return values.reads.answer(args[0], record, compute(index, args, kwargs))
    return values.reads.answer(args[0], record)


def _unscale(
    values: Any, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Check only gradients with values for infinities, to compute `found_inf`: the others count as finite."""
    valued = [
        gradient
        for gradient in args[0]
        if values.record_of(gradient) is None and gradient.numel() <= _MAX_CHECKED_ELEMENTS
    ]
    if valued:
        compute(index, (valued, *args[1:]), kwargs)
    return None


def _are_equal(
    values: Any, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    a, b = args[:2]
    if (values.record_of(a) is None and values.record_of(b) is None) or a.shape != b.shape:
        return NotImplemented if a.shape == b.shape else False
    if values.are_same(a, b):
        return True
    x, y = values.guess_of(a), values.guess_of(b)
    alike = x is not None and y is not None and x.exact and y.exact
    if alike and x is not None and y is not None:
        return x.mean == y.mean
    record = anything("equal", torch.bool)
    return values.reads.answer_like(record, bool, False)


def _assume_assertion_holds(
    values: Any, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Skip an assertion on the device about missing values: it counts as true."""
    return NotImplemented if all(values.record_of(tensor) is None for tensor in trees.tensors(args)) else None


def _run_on_parts(
    values: Any, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Compute operators on the parts of a sparse tensor, which need no values."""
    return compute(index, args, kwargs)


def _coalesce(
    values: Any, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Coalesce a sparse tensor without values: its indices are unique, its entries stay unknown."""
    tensor = args[0]
    if not _lacks_values(values, tensor):
        return NotImplemented
    indices = sparse_parts(tensor)[0].unique(dim=1)
    return _make_sparse(values, tensor, indices, tensor.dtype, values.record_of(tensor), coalesced=True)


def _copy_sparse(
    values: Any, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Copy a sparse tensor without values: only its indices are copied."""
    tensor = args[0]
    if tensor.layout is not torch.sparse_coo or not _lacks_values(values, tensor):
        return NotImplemented
    indices = sparse_parts(tensor)[0].clone()
    return _make_sparse(
        values, tensor, indices, kwargs.get("dtype") or tensor.dtype, values.record_of(tensor)
    )


def _sparse_mask(
    values: Any, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Select the elements of a dense tensor without values at the indices of a sparse mask."""
    dense, mask = args
    record = values.record_of(dense)
    if mask.layout is not torch.sparse_coo or record is None or record.filled:
        return NotImplemented
    return _make_sparse(values, mask, sparse_parts(mask)[0].clone(), dense.dtype, record)


def _lacks_values(values: Any, tensor: Any) -> bool:
    record = values.record_of(tensor)
    return record is not None and not record.exact and not record.filled


def _make_sparse(
    values: Any, like: Any, indices: Any, dtype: torch.dtype, record: Any, coalesced: bool = False
) -> Any:
    """Return a sparse tensor of the shape of `like` whose entries at `indices` have the guess `record`."""
    shape = (indices.shape[1], *sparse_parts(like)[1].shape[1:])
    entries = untouched_tensor(shape, torch.empty(shape, device="meta").stride(), dtype)
    values.mark(entries, record)
    return torch.sparse_coo_tensor(
        indices, entries, like.shape, check_invariants=False, is_coalesced=coalesced or like.is_coalesced()
    )


_SPARSE_PART_OPERATORS = (
    "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_unsafe",
    "_sparse_compressed_tensor_unsafe", "is_coalesced", "_coalesced_", "_nnz", "_dimI", "_dimV",
    "sparse_dim", "dense_dim",
)  # fmt: skip
SPECIAL_OPERATORS: dict[str, Special] = {
    "aten::_local_scalar_dense": _read,
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "aten::equal": _are_equal,
    "aten::_assert_async": _assume_assertion_holds,
    "aten::_functional_assert_async": _assume_assertion_holds,
    "aten::_linalg_check_errors": _assume_assertion_holds,
    **{f"aten::{name}": _run_on_parts for name in _SPARSE_PART_OPERATORS},
    "aten::_coalesce": _coalesce,
    "aten::clone": _copy_sparse,
    "aten::_to_copy": _copy_sparse,
    "aten::sparse_mask": _sparse_mask,
}
"""Operators with rules of their own, by qualified name."""
