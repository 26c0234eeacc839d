"""Copies, selections, joins and partial writes."""

from __future__ import annotations

import torch

from gapless.emulation.dry.guesses.guess import (
    Guess,
    convert,
    mix,
)
from gapless.emulation.dry.guesses.rules import OperatorResult, indices, is_whole, rule

_PERMUTATIONS = frozenset(
    {"_to_copy", "clone", "detach", "alias", "_unsafe_view", "lift_fresh", "lift", "flip", "roll"}
)
"""Operators whose result holds every element once, so that the total stays."""


@rule(
    "_to_copy", "clone", "detach", "alias", "index", "gather", "index_select", "masked_select", "embedding",
    "_unsafe_view", "repeat", "flip", "roll", "lift_fresh", "constant_pad_nd", "select_scatter", "take",
    "unsafe_split", "unsafe_split_with_sizes", "split_with_sizes_copy", "upsample_nearest2d", "triu", "tril",
    "upsample_bilinear2d", "expand_copy", "permute_copy", "view_copy", "slice_scatter", "_unsafe_index",
    "repeat_interleave", "unfold_copy", "_to_dense", "median", "nanmedian", "mode", "kthvalue", "lift",
    "unique_consecutive", "_unique2", "unique_dim", "round", "floor", "ceil", "trunc", "avg_pool2d",
    "_adaptive_avg_pool2d", "slice_copy", "select_copy",
)  # fmt: skip
def _rearrange(result: OperatorResult) -> Guess | None:
    if result.position:
        return indices(result)
    x = result.x
    guess = convert(x, result.dtype, exact=x.exact and result.base not in ("triu", "tril", "constant_pad_nd"))
    guess.total = x.total if result.base in _PERMUTATIONS and result.whole else None
    return guess


@rule("copy", "_foreach_copy")
def _copy(result: OperatorResult) -> Guess | None:
    if result.y is None:
        return None
    guess = convert(result.y, result.dtype, exact=result.y.exact)
    from_all = isinstance(result.args[1], torch.Tensor) and is_whole(result.args[1])
    guess.total = result.y.total if result.whole and from_all else None
    return guess


@rule("where")
def _where(result: OperatorResult) -> Guess | None:
    y, z = result.y, result.at(2)
    return None if y is None or z is None else mix(z, y, min(1.0, max(0.0, result.x.mean)))


@rule("masked_fill")
def _masked_fill(result: OperatorResult) -> Guess | None:
    mask, value = result.y, result.at(2)
    return None if mask is None or value is None else mix(result.x, value, min(1.0, max(0.0, mask.mean)))


@rule("cat", "stack", "sort")
def _concatenate(result: OperatorResult) -> Guess | None:
    if result.position:
        return indices(result)
    tensors = result.args[0]
    if isinstance(tensors, (list, tuple)) and len(tensors) > 1:
        first, last = result.guess_of(tensors[0]), result.guess_of(tensors[-1])
        if first is not None and last is not None and first is not last:
            return mix(first, last, 0.5)
    return convert(result.x, result.dtype, exact=False)


@rule("scatter", "index_put", "index_copy", "masked_scatter", "scatter_add", "index_add")
def _write_part(result: OperatorResult) -> Guess | None:
    value = result.at(3) or result.at(2)
    return result.x if value is None else mix(result.x, value, 0.5)
