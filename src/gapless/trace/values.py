"""What the arguments of many events are, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from gapless.trace.events import Args, integer
from gapless.trace.timeline import Floats, Ints


def column(args: list[Args], name: str) -> Ints:
    """One argument of all events, as integers whatever the file wrote."""
    return integers(args, attrgetter(name))


def integers(rows: Sequence[Any], get: Callable[[Any], Any]) -> Ints:
    """What `get` has of each, as integers."""
    try:
        return np.fromiter(map(get, rows), np.int64, len(rows))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter((integer(get(one)) for one in rows), np.int64, len(rows))


def places(args: list[Args], name: str) -> Ints:
    """Devices or streams: one that the profiler does not know is -1."""
    found = column(args, name)
    found[found == 0xFFFFFFFF] = -1
    return found


def external_ids(args: list[Args]) -> Ints:
    """The external ids, under either of their names."""
    found = column(args, "external_id")
    if (found < 0).any():
        found = np.where(found < 0, column(args, "external_id_old"), found)
    return found


def reals(values: list[Any]) -> Floats:
    try:
        found: Floats = np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError):  # "inf" blocks per SM
        found = np.array([one if isinstance(one, float) else -1.0 for one in values])
    return np.where(np.isfinite(found), found, -1.0)
