"""Report bad values that updates met on the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.checks import warn
from gapless.metrics.mode import Mode
from gapless.metrics.statistic import ReportedCounts, Statistic
from gapless.transfer import Reading

NamedStatistic = tuple[Statistic, tuple[str, ...]]
"""A statistic, and the names of the metrics computed from it."""


class Complaint(NamedTuple):
    """A message about bad values, and whether it is an error or a warning."""

    message: str
    error: bool


def make_complaint(
    statistic: Statistic,
    names: Sequence[str],
    reported: ReportedCounts,
    count: int,
    clean: int | None = None,
    batch: Batch | None = None,
) -> Complaint | None:
    """Return a complaint if `count` bad values since a reset are more than were reported, and mark them
    reported.

    The message names the metrics and, if `clean` is known (the number of updates before the first bad value),
    that update. `batch` is the batch with the bad values, if available.
    """
    fresh = count - reported.count
    if fresh <= 0:
        return None
    where = "" if clean is None or reported.count else f" (first in update {clean + 1})"
    reported.count = count
    words = statistic.complaint(fresh) if batch is None else statistic.complaint_about(batch, fresh)
    return Complaint(f"{', '.join(names)}: {words}{where}", statistic.severity == "error")


def complaint_from_pieces(
    statistic: Statistic, names: Sequence[str], reported: ReportedCounts, pieces: Sequence[Tensor]
) -> Complaint | None:
    """Return a complaint from the result of :meth:`Statistic.fault_pieces`, on the CPU."""
    count, clean = statistic.read_faults(pieces)
    return make_complaint(
        statistic, names, reported, count, None if statistic.device.type == "cpu" else clean
    )


def complaint_about_other_processes(
    statistic: Statistic, names: Sequence[str], reported: ReportedCounts, count: int
) -> Complaint | None:
    """Return an error if other processes met more bad values than were reported, and mark them reported.

    So the same error ends all processes, not only the one with the bad batch.
    """
    fresh = count - reported.elsewhere
    if fresh <= 0:
        return None
    reported.elsewhere = count
    return Complaint(f"{', '.join(names)}: {statistic.complaint(fresh)} (in another process)", error=True)


def deliver_from_other_processes(statistics: Sequence[NamedStatistic]) -> None:
    """Raise for bad values that the last reduction found in other processes, for statistics on the CPU.

    Raises:
        RuntimeError: another process met bad values that a statistic treats as an error.
    """
    deliver(
        [
            complaint_about_other_processes(part, names, part.reported, int(part.errors_elsewhere.item()))
            for part, names in statistics
            if part.errors_elsewhere is not None and part.device.type == "cpu" and not part.in_batch
        ]
    )


def deliver(complaints: Iterable[Complaint | None], errors: bool = True) -> None:
    """Warn of `complaints` and raise those that are errors; without `errors` only warn.

    Raises:
        RuntimeError: a statistic treats bad values as an error.
    """
    present = [complaint for complaint in complaints if complaint is not None]
    for complaint in present:
        if not (errors and complaint.error):
            warn(complaint.message)
    messages = [complaint.message for complaint in present if errors and complaint.error]
    if messages:
        raise RuntimeError("\n".join(messages))


def deliver_on_host(statistic: Statistic, names: Sequence[str], batch: Batch | None = None) -> None:
    """Raise or warn about bad values of a statistic on the CPU, unless a batch is under way."""
    if statistic.in_batch:
        return
    count = statistic.faults_on_host()
    if count:
        deliver([make_complaint(statistic, names, statistic.reported, count, batch=batch)])


def check(statistics: Sequence[NamedStatistic]) -> None:
    """Raise or warn about bad values in `statistics`. **On a GPU this waits** for the device."""
    statistics_with_pieces = [(statistic, names, statistic.fault_pieces()) for statistic, names in statistics]
    checked = [
        (statistic, names, pieces)
        for statistic, names, pieces in statistics_with_pieces
        if pieces is not None
    ]
    reading = Reading([pieces for _, _, pieces in checked])
    reading.synchronize()
    arrived = reading.result()
    deliver(
        [
            complaint_from_pieces(statistic, names, statistic.reported, pieces)
            for (statistic, names, _), pieces in zip(checked, arrived, strict=True)
        ]
    )


def check_after_update(statistics: Sequence[NamedStatistic]) -> None:
    """Raise or warn about bad values after an update: on the CPU, and everywhere in strict mode."""
    for statistic, names in statistics:
        if statistic.checked and statistic.device.type == "cpu":
            deliver_on_host(statistic, names)
    check_if_strict(statistics)


def check_if_strict(statistics: Sequence[NamedStatistic]) -> None:
    """In strict mode, raise or warn about bad values on a device, **and wait** for it."""
    if strict.on and not torch.compiler.is_compiling():
        on_device = [named for named in statistics if named[0].device.type != "cpu" and not named[0].in_batch]
        if on_device and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            check(on_device)


class strict(Mode):  # noqa: N801  # used as a statement
    """Make every update report its bad values at once, on a GPU too: **each update then waits**.

    For debugging: the update with the bad value raises, and functions raise in the same call. Applies from
    here on, or inside a ``with`` block.

    >>> from gapless.metrics import MeanMetric
    >>> with strict():
    ...     MeanMetric(nan_strategy="error").update(torch.ones(3))

    Args:
        mode: False to turn strict mode off.
    """
