"""What constructors accept, and what they say about the rest."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor

LIBRARIES = ("gapless.", "torch.", "torchmetrics.", "contextlib")
AVERAGES = ("micro", "macro", "weighted", "none", None)


def one_of(
    name: str, value: Any, allowed: Sequence[Any], stop: str = "", comma: str = ",", listed: str | None = None
) -> None:
    """Raises ValueError unless `value` is in `allowed`.

    `stop`, `comma` and `listed` (in place of the tuple) make the words those that TorchMetrics has there.
    """
    if not any(value is one or value == one for one in allowed):
        shown = tuple(allowed) if listed is None else listed
        raise ValueError(f"Expected argument `{name}` to be one of {shown}{comma} but got {value}{stop}")


def integer_above(name: str, value: Any, least: int) -> None:
    """Raises ValueError unless `value` is an integer larger than `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= least:
        raise ValueError(f"Expected argument `{name}` to be an integer larger than {least}, but got {value}")


def unit_float(name: str, value: Any, range_told: bool = True) -> None:
    """Raises ValueError unless `value` is a float from 0 to 1; the range is left out of some messages."""
    if not (isinstance(value, float) and 0 <= value <= 1):
        told = " in the [0,1] range" if range_told else ""
        raise ValueError(f"Expected argument `{name}` to be a float{told}, but got {value}.")


def optional_integer(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is None or an integer."""
    if value is not None and not isinstance(value, int):
        raise ValueError(f"Expected argument `{name}` to either be `None` or an integer, but got {value}")


def zero_or_one(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is 0 or 1."""
    if value not in (0, 1):
        raise ValueError(f"Expected argument `{name}` to be 0 or 1, but got {value}.")


def same_shape(preds: Tensor, target: Tensor) -> None:
    """Raises RuntimeError unless predictions and targets have the same shape."""
    if preds.shape != target.shape:
        raise RuntimeError(
            "Predictions and targets are expected to have the same shape, "
            f"but got {preds.shape} and {target.shape}."
        )


def user_error(kind: type[Exception], message: str) -> Exception:
    """An exception of `kind`; where TorchMetrics is loaded also of its own, for which its users may look."""
    theirs = sys.modules.get("torchmetrics.utilities.exceptions")
    if theirs is None:
        return kind(message)
    body = {"__module__": kind.__module__, "__reduce__": lambda error: (kind, error.args)}
    both: type[Exception] = type(kind.__name__, (kind, theirs.TorchMetricsUserError), body)
    return both(message)


def multidim(value: Any) -> None:
    """Raises ValueError unless `value` is a way to treat further dimensions."""
    one_of("multidim_average", value, ("global", "samplewise"))


def warn(message: str) -> None:
    """Warn from the user's line, whichever way it took to get here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(LIBRARIES):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)
