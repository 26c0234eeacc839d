"""Copy results from the device to the host without waiting, and report bad values with them."""

from __future__ import annotations

import atexit
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.util import Finalize, register_after_fork
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.faults import (
    Complaint,
    NamedStatistic,
    complaint_about_other_processes,
    complaint_from_pieces,
    deliver,
)
from gapless.metrics.global_states import GlobalStates
from gapless.metrics.statistic import GONE, LIVE, ReportedCounts, Statistic
from gapless.transfer import Reading


class CheckedReading(Reading):
    """Results on their way to the host, with the bad values that updates met in all processes."""

    def __init__(self, values: Any, statistics: Sequence[NamedStatistic] = ()) -> None:
        states = [(part, names, part.fault_pieces()) for part, names in statistics]
        self._watched = [(part, names, part.reported) for part, names, state in states if state is not None]
        self._reduced = [
            watched_statistic
            for watched_statistic in self._watched
            if watched_statistic[0].errors_elsewhere is not None
        ]
        pieces = [state for _, _, state in states if state is not None]
        super().__init__((values, pieces, [part.errors_elsewhere for part, _, _ in self._reduced]))

    def result(self) -> Any:
        """Return the results as CPU tensors, in the structure that ``compute`` returns.

        **This waits** if the values have not arrived yet.

        Raises:
            RuntimeError: a metric met values that it treats as an error, in this process or another.
        """
        values, _, _ = super().result()
        deliver(self.complaints())
        return values

    def complaints(self) -> list[Complaint | None]:
        """Return complaints about the bad values. **This waits** if they have not arrived yet."""
        _, faults, elsewhere = super().result()
        own = zip(self._watched, faults, strict=True)
        other = zip(self._reduced, elsewhere, strict=True)
        return [
            *(complaint_from_pieces(part, names, reported, state) for (part, names, reported), state in own),
            *(
                complaint_about_other_processes(part, names, reported, int(n))
                for (part, names, reported), n in other
            ),
        ]

    def late(self, counts: Mapping[Statistic, Tensor]) -> LateErrors:
        """Start copying `counts` of bad values in other processes to the host."""
        return LateErrors(
            [watched_statistic for watched_statistic in self._watched if watched_statistic[0] in counts],
            counts,
        )


class LateErrors(Reading):
    """Counts of other processes' bad values on their way to the host, known only after a reduction."""

    def __init__(
        self,
        watched: Sequence[tuple[Statistic, Sequence[str], ReportedCounts]],
        counts: Mapping[Statistic, Tensor],
    ) -> None:
        self._watched = watched
        super().__init__([counts[part] for part, _, _ in watched])

    def deliver(self) -> None:
        """Raise for the bad values. **This waits** if the counts have not arrived yet.

        Raises:
            RuntimeError: another process met bad values that a metric treats as an error.
        """
        pairs = zip(self._watched, self.result(), strict=True)
        deliver(
            [
                complaint_about_other_processes(part, names, reported, int(n))
                for (part, names, reported), n in pairs
            ]
        )


class PendingReading(Reading):
    """Results that are computed once an asynchronous reduction has completed."""

    def __init__(self, faults: CheckedReading, states: GlobalStates, compute: Callable[[], Any]) -> None:
        self._faults = faults
        self._states = states
        self._compute = compute
        self._values: Reading | None = None
        self._late: LateErrors | None = None

    def ready(self) -> bool:
        """Whether the values have arrived; does not wait. Computes the results if the states are reduced."""
        if self._values is None and not self._states.ready():
            return False
        return self._start_copy().ready() and self._faults.ready()

    def result(self) -> Any:
        """Return the results. **This waits** for the other processes too."""
        values = self._start_copy()
        self._faults.result()
        if self._late is not None:
            self._late.deliver()
        return values.result()

    def _start_copy(self) -> Reading:
        if self._values is None:
            held = self._states.swap_in()
            try:
                self._values = Reading(self._compute())
            finally:
                held.release(note=False)  # the metric may have been reset since
            self._late = self._faults.late(held.elsewhere)
        return self._values


class FaultWatch:
    """Looks for bad values whenever a metric is computed or reset, in case nobody reads it.

    Looking starts a copy and reports what earlier copies brought; neither waits.
    """

    def __init__(self) -> None:
        self._sent: list[Any] = []

    def look(self, statistics: Sequence[NamedStatistic], resetting: bool = False) -> None:
        """Report bad values that have arrived and start another copy; not in a graph, compiled or on the CPU.

        Before a reset the states are copied in any case, unless they have not changed since the last copy:
        the reset removes the only record.
        """
        unreported = [
            named_statistic
            for named_statistic in statistics
            if named_statistic[0].device.type == "cuda" and named_statistic[0].may_have_unreported_faults()
        ]
        if not (unreported and is_looking_allowed()):
            return
        arrived, waiting = take_arrived(self)
        if not (self._is_unchanged(unreported) if resetting else waiting):
            PENDING.append((weakref.ref(self), CheckedReading(None, unreported)))
            self._sent = [(weakref.ref(held), held._version) for held in _fault_tensors(unreported)]
        report_gone()
        deliver([complaint for reading in arrived for complaint in reading.complaints()])

    def _is_unchanged(self, unreported: Sequence[NamedStatistic]) -> bool:
        """Whether the states have not changed since the last copy was started."""
        tensors = _fault_tensors(unreported)
        return (
            len(tensors) == len(self._sent)
            and all(
                ref() is tensor and version == tensor._version
                for (ref, version), tensor in zip(self._sent, tensors, strict=True)
            )
            and not any(part.replayed for part, _ in unreported)
        )

    def __reduce__(self) -> Any:
        return FaultWatch, ()


def _fault_tensors(owed: Sequence[NamedStatistic]) -> list[Tensor]:
    return [held for part, _ in owed for held in part.fault_tensors()]


def is_looking_allowed() -> bool:
    """Whether nothing is being compiled or captured in a graph, which would record the look itself."""
    return not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing()


PENDING: list[tuple[weakref.ref[FaultWatch] | None, CheckedReading]] = []
"""Bad values on their way to the host, with the watch that copies them; None if its metric is gone."""


def take_arrived(owner: FaultWatch | None) -> tuple[list[CheckedReading], bool]:
    """Remove and return the readings of `owner` that have arrived, and whether more are pending.

    `owner` None stands for metrics that are gone.
    """
    own = [entry for entry in PENDING if (None if entry[0] is None else entry[0]()) is owner]
    arrived = [entry for entry in own if entry[1].ready()]
    PENDING[:] = [entry for entry in PENDING if entry not in arrived]
    return [reading for _, reading in arrived], len(arrived) < len(own)


def report_gone(errors: bool = False) -> None:
    """Report bad values of functions and of metrics that are gone, and start another copy; does not wait.

    Raises:
        RuntimeError: bad values are an error, and `errors` is set.
    """
    arrived, waiting = take_arrived(None)
    if GONE and not waiting:
        PENDING.append((None, CheckedReading(None, [(part, part.names) for part in GONE])))
        GONE.clear()
    deliver([complaint for reading in arrived for complaint in reading.complaints()], errors)


INHERITED_WRITES: weakref.WeakKeyDictionary[Statistic, list[int]] = weakref.WeakKeyDictionary()
"""Statistics inherited when this process was forked, and how often each tensor had been written to."""


def _write_counts(part: Statistic) -> list[int]:
    return [held._version for held in part.fault_tensors()]


@atexit.register
def report_at_exit() -> None:
    """Write bad values that were never reported to stderr at exit. **This waits** for the device."""
    unreported = [part for part in (*LIVE, *GONE) if part.may_have_unreported_faults()]
    unreported = [
        part
        for part in unreported
        if part not in INHERITED_WRITES or INHERITED_WRITES[part] != _write_counts(part)
    ]
    sources: list[CheckedReading | Statistic] = [*(reading for _, reading in PENDING), *unreported]
    messages: list[str] = []
    for source in sources:
        with suppress(RuntimeError):  # the device may be gone already
            reading = (
                CheckedReading(None, [(source, source.names)]) if isinstance(source, Statistic) else source
            )
            messages += [complaint.message for complaint in reading.complaints() if complaint is not None]
    PENDING.clear()
    GONE.clear()
    for message in sorted(set(messages)):
        sys.stderr.write(f"gapless.metrics: {message}\n")


def _start_child_process(tell: Callable[[], None]) -> None:
    """Prepare a multiprocessing child: it skips `atexit`, and its parent reports inherited values."""
    PENDING.clear()
    GONE.clear()
    INHERITED_WRITES.update((part, _write_counts(part)) for part in LIVE if part.may_have_unreported_faults())
    Finalize(None, tell, exitpriority=0)


register_after_fork(report_at_exit, _start_child_process)
if parent_process() is not None:
    _start_child_process(report_at_exit)


class PeriodicReader:
    """Reads metrics every so many updates and passes the values on, in order, when they have arrived."""

    def __init__(
        self,
        updates: int,
        callback: Callable[[int, Any], Any],
        reset: bool = False,
        async_op: bool = False,
    ) -> None:
        if updates < 1:
            raise ValueError(f"Expected a positive number of updates, but got {updates}")
        self.updates = updates
        self.callback = callback
        self.reset = reset
        self.async_op = async_op
        self._count = 0
        self._pending: deque[tuple[int, Reading]] = deque()

    def count_update(self, metrics: Any) -> None:
        """Count an update of `metrics`, and read them if it is time."""
        self._count += 1
        if self._count % self.updates == 0:
            self._pending.append((self._count, metrics.read(self.async_op)))
            if self.reset:
                metrics.reset()
        self.poll()

    def poll(self) -> None:
        """Pass on the values that have arrived; does not wait."""
        while self._pending and self._pending[0][1].ready():
            update, reading = self._pending.popleft()
            self.callback(update, reading.result())

    def finish(self) -> None:
        """Pass on all pending values. **This waits** for them."""
        while self._pending:
            update, reading = self._pending.popleft()
            self.callback(update, reading.result())
