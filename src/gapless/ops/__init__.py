"""Operations of fixed size: drop-in replacements for lines that make the host wait.

Every function keeps the reference's arguments, defaults and results as far as a fixed size allows, is
differentiable where the reference is, and compiles with ``torch.compile(fullgraph=True)``. Nothing here
reads a value on the host, except where a docstring says **waits**. ``docs/ops.md`` lists the line that each
function replaces. Names are loaded on first use: importing this package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless.ops.assigning import assign as assign
    from gapless.ops.assigning import masked_scatter as masked_scatter
    from gapless.ops.classes import cross_entropy as cross_entropy
    from gapless.ops.classes import nll_loss as nll_loss
    from gapless.ops.count import bincount as bincount
    from gapless.ops.count import count_unique as count_unique
    from gapless.ops.count import histc as histc
    from gapless.ops.count import histogram as histogram
    from gapless.ops.count import one_hot as one_hot
    from gapless.ops.distinct import Distinct as Distinct
    from gapless.ops.distinct import unique as unique
    from gapless.ops.distinct import unique_consecutive as unique_consecutive
    from gapless.ops.later import LogBuffer as LogBuffer
    from gapless.ops.later import Reading as Reading
    from gapless.ops.later import read_later as read_later
    from gapless.ops.losses import binary_cross_entropy as binary_cross_entropy
    from gapless.ops.losses import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
    from gapless.ops.losses import huber_loss as huber_loss
    from gapless.ops.losses import l1_loss as l1_loss
    from gapless.ops.losses import mse_loss as mse_loss
    from gapless.ops.losses import smooth_l1_loss as smooth_l1_loss
    from gapless.ops.masked import masked_log_softmax as masked_log_softmax
    from gapless.ops.masked import masked_max as masked_max
    from gapless.ops.masked import masked_mean as masked_mean
    from gapless.ops.masked import masked_min as masked_min
    from gapless.ops.masked import masked_softmax as masked_softmax
    from gapless.ops.masked import masked_std as masked_std
    from gapless.ops.masked import masked_sum as masked_sum
    from gapless.ops.masked import masked_var as masked_var
    from gapless.ops.masks import not_ignored as not_ignored
    from gapless.ops.scalars import choose as choose
    from gapless.ops.scalars import scalar as scalar
    from gapless.ops.scalars import zero_unless as zero_unless
    from gapless.ops.select import Bounded as Bounded
    from gapless.ops.select import argwhere as argwhere
    from gapless.ops.select import compact as compact
    from gapless.ops.select import masked_select as masked_select
    from gapless.ops.select import nonzero as nonzero
    from gapless.ops.select import repeat_interleave as repeat_interleave
    from gapless.ops.stepping import all_finite as all_finite
    from gapless.ops.stepping import clip_grad_norm_ as clip_grad_norm_
    from gapless.ops.stepping import step_if as step_if
    from gapless.ops.stepping import step_if_finite as step_if_finite
    from gapless.ops.transfer import to_device as to_device

_HOMES = {
    "assigning": ("assign", "masked_scatter"),
    "classes": ("cross_entropy", "nll_loss"),
    "count": ("bincount", "count_unique", "histc", "histogram", "one_hot"),
    "later": ("LogBuffer", "Reading", "read_later"),
    "losses": (
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "huber_loss",
        "l1_loss",
        "mse_loss",
        "smooth_l1_loss",
    ),
    "masked": (
        "masked_log_softmax",
        "masked_max",
        "masked_mean",
        "masked_min",
        "masked_softmax",
        "masked_std",
        "masked_sum",
        "masked_var",
    ),
    "masks": ("not_ignored",),
    "scalars": ("choose", "scalar", "zero_unless"),
    "select": ("Bounded", "argwhere", "compact", "masked_select", "nonzero", "repeat_interleave"),
    "stepping": ("all_finite", "clip_grad_norm_", "step_if", "step_if_finite"),
    "transfer": ("to_device",),
    "distinct": ("Distinct", "unique", "unique_consecutive"),
}
"""The public names of each module of this package; no module has the name of a function."""

_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'gapless.ops' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gapless.ops.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
