"""Operators that are not run by the one rule for all: reads, checks, a GradScaler's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulate.dry.guess import anything
from gapless.emulate.dry.kinds import Kind

Compute = Callable[[int, Any, dict[str, Any]], Any]
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


SPECIAL: dict[str, Special] = {
    "aten::_local_scalar_dense": _read,
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "aten::equal": _are_equal,
    "aten::_assert_async": _check_nothing,
    "aten::_functional_assert_async": _check_nothing,
    "aten::_linalg_check_errors": _check_nothing,
}
"""Operators that are not run by the one rule for all."""
