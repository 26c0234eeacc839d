"""Telling the user about bad values that updates met on the device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.statistic import Statistic, Told
from gapless.transfer import Reading


def deliver(
    statistic: Statistic,
    names: Sequence[str],
    told: Told,
    count: int,
    clean: int | None = None,
    batch: Batch | None = None,
) -> None:
    """Raise or warn, as `statistic` says, if `count` bad values since a reset are more than were `told`.

    The message names the metrics computed from the statistic and, where `clean` updates went well before the
    first bad value, that update; `batch` is the one that brought the bad values, if it is at hand.

    Raises:
        RuntimeError: where the statistic takes bad values for an error.
    """
    fresh = count - told.count
    if fresh <= 0:
        return
    where = "" if clean is None or told.count else f" (first in update {clean + 1})"
    told.count = count
    words = statistic.complaint(fresh) if batch is None else statistic.complaint_about(batch, fresh)
    message = f"{', '.join(names)}: {words}{where}"
    if statistic.severity == "error":
        raise RuntimeError(message)
    warnings.warn(message, UserWarning, stacklevel=4)


def deliver_state(statistic: Statistic, names: Sequence[str], told: Told, pieces: Sequence[Tensor]) -> None:
    """The same for what :meth:`Statistic.fault_pieces` gave, on the host."""
    count, clean = statistic.told_by(pieces)
    deliver(statistic, names, told, count, None if statistic.device.type == "cpu" else clean)


def deliver_on_host(statistic: Statistic, names: Sequence[str], batch: Batch | None = None) -> None:
    """The same for a statistic on the CPU, where looking is free; not before a batch is added to the rest."""
    if statistic.in_batch:
        return
    count = statistic.faults_on_host()
    if count:
        deliver(statistic, names, statistic.told, count, batch=batch)


def check(statistics: Sequence[tuple[Statistic, Sequence[str]]]) -> None:
    """Raise or warn about what every one of `statistics` met. **On a GPU this waits** for the device."""
    found = [(statistic, names, statistic.fault_pieces()) for statistic, names in statistics]
    known = [(statistic, names, pieces) for statistic, names, pieces in found if pieces is not None]
    arrived = Reading([pieces for _, _, pieces in known]).result()
    for (statistic, names, _), pieces in zip(known, arrived, strict=True):
        deliver_state(statistic, names, statistic.told, pieces)


def check_on_host(statistics: Sequence[tuple[Statistic, Sequence[str]]]) -> None:
    """The same, only for those on the CPU."""
    for statistic, names in statistics:
        if statistic.checked and statistic.device.type == "cpu":
            deliver_on_host(statistic, names)
