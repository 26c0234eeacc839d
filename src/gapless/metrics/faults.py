"""Telling the user about bad values that updates met on the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.checks import warn
from gapless.metrics.mode import Mode
from gapless.metrics.statistic import Statistic, Told
from gapless.transfer import Reading

Watched = tuple[Statistic, tuple[str, ...]]
"""A statistic, and the names of what is computed from it."""


class Complaint(NamedTuple):
    """What to say about bad values, and whether they are an error."""

    message: str
    error: bool


def complaint(
    statistic: Statistic,
    names: Sequence[str],
    told: Told,
    count: int,
    clean: int | None = None,
    batch: Batch | None = None,
) -> Complaint | None:
    """What to say if `count` bad values since a reset are more than were `told`, which they are from here on.

    The message names the metrics computed from the statistic and, where `clean` updates went well before the
    first bad value, that update; `batch` is the one that brought the bad values, if it is at hand.
    """
    fresh = count - told.count
    if fresh <= 0:
        return None
    where = "" if clean is None or told.count else f" (first in update {clean + 1})"
    told.count = count
    words = statistic.complaint(fresh) if batch is None else statistic.complaint_about(batch, fresh)
    return Complaint(f"{', '.join(names)}: {words}{where}", statistic.severity == "error")


def complaint_of(
    statistic: Statistic, names: Sequence[str], told: Told, pieces: Sequence[Tensor]
) -> Complaint | None:
    """The same for what :meth:`Statistic.fault_pieces` gave, on the host."""
    count, clean = statistic.told_by(pieces)
    return complaint(statistic, names, told, count, None if statistic.device.type == "cpu" else clean)


def complaint_elsewhere(
    statistic: Statistic, names: Sequence[str], told: Told, count: int
) -> Complaint | None:
    """Return an error if other processes met `count` bad values and more than were told; they then are.

    So the same error ends all processes, and not only the one whose batch was bad.
    """
    fresh = count - told.elsewhere
    if fresh <= 0:
        return None
    told.elsewhere = count
    return Complaint(f"{', '.join(names)}: {statistic.complaint(fresh)} (in another process)", error=True)


def deliver_elsewhere(statistics: Sequence[Watched]) -> None:
    """Raise what other processes met, by the last reduction, for those on the CPU, where looking is free.

    Raises:
        RuntimeError: another process met bad values that a statistic takes for an error.
    """
    deliver(
        [
            complaint_elsewhere(part, names, part.told, int(part.errors_elsewhere.item()))
            for part, names in statistics
            if part.errors_elsewhere is not None and part.device.type == "cpu" and not part.in_batch
        ]
    )


def deliver(found: Iterable[Complaint | None], errors: bool = True) -> None:
    """Warn of what was `found`; raise where it is an error, unless `errors` are to be warned of, too.

    Raises:
        RuntimeError: a statistic takes bad values for an error.
    """
    known = [one for one in found if one is not None]
    for one in known:
        if not (errors and one.error):
            warn(one.message)
    messages = [one.message for one in known if errors and one.error]
    if messages:
        raise RuntimeError("\n".join(messages))


def deliver_on_host(statistic: Statistic, names: Sequence[str], batch: Batch | None = None) -> None:
    """The same for a statistic on the CPU, where looking is free; not before a batch is added to the rest."""
    if statistic.in_batch:
        return
    count = statistic.faults_on_host()
    if count:
        deliver([complaint(statistic, names, statistic.told, count, batch=batch)])


def check(statistics: Sequence[Watched]) -> None:
    """Raise or warn about what every one of `statistics` met. **On a GPU this waits** for the device."""
    found = [(statistic, names, statistic.fault_pieces()) for statistic, names in statistics]
    known = [(statistic, names, pieces) for statistic, names, pieces in found if pieces is not None]
    reading = Reading([pieces for _, _, pieces in known])
    reading.synchronize()
    arrived = reading.result()
    deliver(
        [
            complaint_of(statistic, names, statistic.told, pieces)
            for (statistic, names, _), pieces in zip(known, arrived, strict=True)
        ]
    )


def check_after(statistics: Sequence[Watched]) -> None:
    """The same after an update, only for those on the CPU; for all where the mode is strict."""
    for statistic, names in statistics:
        if statistic.checked and statistic.device.type == "cpu":
            deliver_on_host(statistic, names)
    check_if_strict(statistics)


def check_if_strict(statistics: Sequence[Watched]) -> None:
    """Where the mode is strict, raise or warn about what an update met on a device, **and wait** for it."""
    if strict.on and not torch.compiler.is_compiling():
        apart = [one for one in statistics if one[0].device.type != "cpu" and not one[0].in_batch]
        if apart and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            check(apart)


class strict(Mode):  # noqa: N801  # used as a statement
    """Let every update of metrics tell at once what was bad in it, on a GPU too: **each then waits** for it.

    For debugging: what raises is the update that met the bad value. Functions tell in the same call. It holds
    from here on, or inside a ``with`` block.

    >>> with strict():
    ...     MeanMetric(nan_strategy="error").update(torch.ones(3))

    Args:
        mode: False to let them wait no more.
    """
