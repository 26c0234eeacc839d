"""Operators that are not run by the one rule for all: reads, checks, a GradScaler's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.dry.calls import Compute
from gapless.emulation.dry.filling import untouched
from gapless.emulation.dry.guesses.guess import anything
from gapless.emulation.dry.kinds import Kind
from gapless.emulation.placement.placement import sparse_parts

Special = Callable[[Any, Kind, Compute, int, Any, dict[str, Any]], Any]
_KNOWN = 1 << 22


def _read(values: Any, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
    record = values.of(args[0])
    if record is None:
        return compute(index, args, kwargs)
    if record.filled:
        return values.reads.answer(args[0], record, compute(index, args, kwargs))
    return values.reads.answer(args[0], record)


def _unscale(values: Any, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
    """Gradients without values are finite: only the others are asked, so that `found_inf` is computed."""
    known = [one for one in args[0] if values.of(one) is None and one.numel() <= _KNOWN]
    if known:
        compute(index, (known, *args[1:]), kwargs)
    return None


def _are_equal(
    values: Any, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    a, b = args[:2]
    if (values.of(a) is None and values.of(b) is None) or a.shape != b.shape:
        return NotImplemented if a.shape == b.shape else False
    if values.same(a, b):
        return True
    x, y = values.guess_of(a), values.guess_of(b)
    alike = x is not None and y is not None and x.exact and y.exact
    if alike and x is not None and y is not None:
        return x.mean == y.mean
    record = anything("equal", torch.bool)
    return values.reads.said(record, bool, False)


def _check_nothing(
    values: Any, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    """An assertion that is made on the device: it holds."""
    return NotImplemented if all(values.of(one) is None for one in trees.tensors(args)) else None


def _put_together(
    values: Any, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    """A sparse tensor is made of its parts, whatever is in them, and tells how many it has."""
    return compute(index, args, kwargs)


def _coalesced(
    values: Any, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Indices tell how many are left; what was added up under them has no values, if it had none."""
    given = args[0]
    if not _lacks(values, given):
        return NotImplemented
    left = sparse_parts(given)[0].unique(dim=1)
    return _sparse(values, given, left, given.dtype, values.of(given), coalesced=True)


def _copied(values: Any, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
    """A copy of a sparse tensor has its indices."""
    given = args[0]
    if given.layout is not torch.sparse_coo or not _lacks(values, given):
        return NotImplemented
    indices = sparse_parts(given)[0].clone()
    return _sparse(values, given, indices, kwargs.get("dtype") or given.dtype, values.of(given))


def _masked(values: Any, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
    """Of a dense tensor what stands at the indices of a sparse one."""
    given, mask = args
    record = values.of(given)
    if mask.layout is not torch.sparse_coo or record is None or record.filled:
        return NotImplemented
    return _sparse(values, mask, sparse_parts(mask)[0].clone(), given.dtype, record)


def _lacks(values: Any, tensor: Any) -> bool:
    record = values.of(tensor)
    return record is not None and not record.exact and not record.filled


def _sparse(
    values: Any, like: Any, indices: Any, dtype: torch.dtype, record: Any, coalesced: bool = False
) -> Any:
    """A tensor of the shape of `like` whose values at `indices` are as `record` says."""
    shape = (indices.shape[1], *sparse_parts(like)[1].shape[1:])
    made = untouched(shape, torch.empty(shape, device="meta").stride(), dtype)
    values.mark(made, record)
    return torch.sparse_coo_tensor(
        indices, made, like.shape, check_invariants=False, is_coalesced=coalesced or like.is_coalesced()
    )


_OF_PARTS = (
    "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_unsafe",
    "_sparse_compressed_tensor_unsafe", "is_coalesced", "_coalesced_", "_nnz", "_dimI", "_dimV",
    "sparse_dim", "dense_dim",
)  # fmt: skip
SPECIAL: dict[str, Special] = {
    "aten::_local_scalar_dense": _read,
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "aten::equal": _are_equal,
    "aten::_assert_async": _check_nothing,
    "aten::_functional_assert_async": _check_nothing,
    "aten::_linalg_check_errors": _check_nothing,
    **{f"aten::{name}": _put_together for name in _OF_PARTS},
    "aten::_coalesce": _coalesced,
    "aten::clone": _copied,
    "aten::_to_copy": _copied,
    "aten::sparse_mask": _masked,
}
"""Operators that are not run by the one rule for all."""
