"""Check the arguments of constructors, with TorchMetrics' error messages."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor

LIBRARIES = ("gapless.", "torch.", "torchmetrics.", "contextlib")
"""Modules whose frames :func:`warn` skips to find the user's line."""
AVERAGES = ("micro", "macro", "weighted", "none", None)


def check_one_of(
    name: str, value: Any, allowed: Sequence[Any], stop: str = "", comma: str = ",", listed: str | None = None
) -> None:
    """Raise ValueError unless `value` is in `allowed`.

    `stop`, `comma` and `listed` (shown in place of the tuple) vary the message as TorchMetrics does.
    """
    if not any(value is choice or value == choice for choice in allowed):
        shown = tuple(allowed) if listed is None else listed
        raise ValueError(f"Expected argument `{name}` to be one of {shown}{comma} but got {value}{stop}")


def check_integer_above(name: str, value: Any, least: int) -> None:
    """Raise ValueError unless `value` is an integer larger than `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= least:
        raise ValueError(f"Expected argument `{name}` to be an integer larger than {least}, but got {value}")


def check_unit_float(name: str, value: Any, show_range: bool = True) -> None:
    """Raise ValueError unless `value` is a float from 0 to 1; `show_range` names the range in the message."""
    if not (isinstance(value, float) and 0 <= value <= 1):
        range_text = " in the [0,1] range" if show_range else ""
        raise ValueError(f"Expected argument `{name}` to be a float{range_text}, but got {value}.")


def check_optional_integer(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is None or an integer."""
    if value is not None and not isinstance(value, int):
        raise ValueError(f"Expected argument `{name}` to either be `None` or an integer, but got {value}")


def check_zero_or_one(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is 0 or 1."""
    if value not in (0, 1):
        raise ValueError(f"Expected argument `{name}` to be 0 or 1, but got {value}.")


def check_same_shape(preds: Tensor, target: Tensor) -> None:
    """Raise RuntimeError unless predictions and targets have the same shape."""
    if preds.shape != target.shape:
        raise RuntimeError(
            "Predictions and targets are expected to have the same shape, "
            f"but got {preds.shape} and {target.shape}."
        )


def user_error(kind: type[Exception], message: str) -> Exception:
    """Return an exception of `kind`, which is also TorchMetrics' own user error if TorchMetrics is loaded."""
    theirs = sys.modules.get("torchmetrics.utilities.exceptions")
    if theirs is None:
        return kind(message)
    body = {"__module__": kind.__module__, "__reduce__": lambda error: (kind, error.args)}
    both: type[Exception] = type(kind.__name__, (kind, theirs.TorchMetricsUserError), body)
    return both(message)


def check_multidim(value: Any) -> None:
    """Raise ValueError unless `value` is a valid ``multidim_average``."""
    check_one_of("multidim_average", value, ("global", "samplewise"))


def warn(message: str) -> None:
    """Issue a UserWarning that points at the first stack frame outside of libraries."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(LIBRARIES):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)
