"""What is copied, chosen and put together."""

from __future__ import annotations

import torch

from gapless.emulation.dry.guesses.guess import (
    Guess,
    converted,
    mixed,
)
from gapless.emulation.dry.guesses.made import Made, indices, is_whole, rule

_ALL = frozenset(
    {"_to_copy", "clone", "detach", "alias", "_unsafe_view", "lift_fresh", "lift", "flip", "roll"}
)
"""Operators that give every element once."""


@rule(
    "_to_copy", "clone", "detach", "alias", "index", "gather", "index_select", "masked_select", "embedding",
    "_unsafe_view", "repeat", "flip", "roll", "lift_fresh", "constant_pad_nd", "select_scatter", "take",
    "unsafe_split", "unsafe_split_with_sizes", "split_with_sizes_copy", "upsample_nearest2d", "triu", "tril",
    "upsample_bilinear2d", "expand_copy", "permute_copy", "view_copy", "slice_scatter", "_unsafe_index",
    "repeat_interleave", "unfold_copy", "_to_dense", "median", "nanmedian", "mode", "kthvalue", "lift",
    "unique_consecutive", "_unique2", "unique_dim", "round", "floor", "ceil", "trunc", "avg_pool2d",
    "_adaptive_avg_pool2d", "slice_copy", "select_copy",
)  # fmt: skip
def _moved(made: Made) -> Guess | None:
    if made.position:
        return indices(made)
    x = made.x
    found = converted(x, made.dtype, exact=x.exact and made.base not in ("triu", "tril", "constant_pad_nd"))
    found.total = x.total if made.base in _ALL and made.whole else None
    return found


@rule("copy", "_foreach_copy")
def _copied(made: Made) -> Guess | None:
    if made.y is None:
        return None
    found = converted(made.y, made.dtype, exact=made.y.exact)
    from_all = isinstance(made.args[1], torch.Tensor) and is_whole(made.args[1])
    found.total = made.y.total if made.whole and from_all else None
    return found


@rule("where")
def _where(made: Made) -> Guess | None:
    y, z = made.y, made.at(2)
    return None if y is None or z is None else mixed(z, y, min(1.0, max(0.0, made.x.mean)))


@rule("masked_fill")
def _masked_fill(made: Made) -> Guess | None:
    mask, value = made.y, made.at(2)
    return None if mask is None or value is None else mixed(made.x, value, min(1.0, max(0.0, mask.mean)))


@rule("cat", "stack", "sort")
def _joined(made: Made) -> Guess | None:
    if made.position:
        return indices(made)
    given = made.args[0]
    if isinstance(given, (list, tuple)) and len(given) > 1:
        first, last = made.guess_of(given[0]), made.guess_of(given[-1])
        if first is not None and last is not None and first is not last:
            return mixed(first, last, 0.5)
    return converted(made.x, made.dtype, exact=False)


@rule("scatter", "index_put", "index_copy", "masked_scatter", "scatter_add", "index_add")
def _partly(made: Made) -> Guess | None:
    value = made.at(3) or made.at(2)
    return made.x if value is None else mixed(made.x, value, 0.5)
