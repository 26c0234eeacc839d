"""Telling the user about bad values that updates met on the device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from gapless.metrics.statistic import Statistic


def deliver(statistic: Statistic, names: Sequence[str], count: int, clean: int | None = None) -> None:
    """Raise or warn, as `statistic` says, about `count` bad values met since the last reset.

    The message names the metrics computed from the statistic and, where `clean` updates went well before the
    first bad value, that update. Once told, the values are forgotten.

    Raises:
        RuntimeError: where the statistic takes bad values for an error.
    """
    statistic.forget_faults()
    where = "" if clean is None else f" (first in update {clean + 1})"
    message = f"{', '.join(names)}: {statistic.complaint(count)}{where}"
    if statistic.severity == "error":
        raise RuntimeError(message)
    warnings.warn(message, UserWarning, stacklevel=4)


def deliver_on_host(statistic: Statistic, names: Sequence[str]) -> None:
    """The same for a statistic on the CPU, where looking costs no wait."""
    faults = statistic.faults()
    if faults is not None:
        count = int(faults.item())
        if count:
            deliver(statistic, names, count)
