"""Results on their way from the device to the host, and bad values with them."""

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

from gapless.metrics.faults import Complaint, Watched, complaint_elsewhere, complaint_of, deliver
from gapless.metrics.global_states import GlobalStates
from gapless.metrics.statistic import GONE, LIVE, Statistic, Told
from gapless.transfer import Reading


class CheckedReading(Reading):
    """Results on their way to the host, and with them the bad values that updates met, in all processes."""

    def __init__(self, values: Any, watched: Sequence[Watched] = ()) -> None:
        states = [(part, names, part.fault_pieces()) for part, names in watched]
        self._watched = [(part, names, part.told) for part, names, state in states if state is not None]
        self._reduced = [one for one in self._watched if one[0].errors_elsewhere is not None]
        pieces = [state for _, _, state in states if state is not None]
        super().__init__((values, pieces, [part.errors_elsewhere for part, _, _ in self._reduced]))

    def result(self) -> Any:
        """The results as tensors of the host, in the form ``compute`` gives them.

        **This waits** where the values have not arrived yet.

        Raises:
            RuntimeError: a metric met values that it takes for an error, in this process or another.
        """
        values, _, _ = super().result()
        deliver(self.complaints())
        return values

    def complaints(self) -> list[Complaint | None]:
        """What to say about the bad values. **This waits** where they have not arrived yet."""
        _, faults, elsewhere = super().result()
        own = zip(self._watched, faults, strict=True)
        other = zip(self._reduced, elsewhere, strict=True)
        return [
            *(complaint_of(part, names, told, state) for (part, names, told), state in own),
            *(complaint_elsewhere(part, names, told, int(n)) for (part, names, told), n in other),
        ]

    def late(self, counts: Mapping[Statistic, Tensor]) -> LateErrors:
        """Start to bring `counts`, of bad values in other processes, to the host."""
        return LateErrors([one for one in self._watched if one[0] in counts], counts)


class LateErrors(Reading):
    """Bad values of other processes on their way to the host, counted after the results were asked for."""

    def __init__(
        self, watched: Sequence[tuple[Statistic, Sequence[str], Told]], counts: Mapping[Statistic, Tensor]
    ) -> None:
        self._watched = watched
        super().__init__([counts[part] for part, _, _ in watched])

    def deliver(self) -> None:
        """Raise what has been met. **This waits** where it has not arrived yet.

        Raises:
            RuntimeError: another process met bad values that a metric takes for an error.
        """
        pairs = zip(self._watched, self.result(), strict=True)
        deliver([complaint_elsewhere(part, names, told, int(n)) for (part, names, told), n in pairs])


class PendingReading(Reading):
    """Results that are computed once the other processes have answered."""

    def __init__(self, faults: CheckedReading, states: GlobalStates, compute: Callable[[], Any]) -> None:
        self._faults = faults
        self._states = states
        self._compute = compute
        self._values: Reading | None = None
        self._late: LateErrors | None = None

    def ready(self) -> bool:
        """Whether the values have arrived; does not wait, and begins what follows from the answers."""
        if self._values is None and not self._states.ready():
            return False
        return self._begun().ready() and self._faults.ready()

    def result(self) -> Any:
        """As in :class:`Reading`. **This waits** for the other processes too."""
        values = self._begun()
        self._faults.result()
        if self._late is not None:
            self._late.deliver()
        return values.result()

    def _begun(self) -> Reading:
        if self._values is None:
            held = self._states.held()
            try:
                self._values = Reading(self._compute())
            finally:
                held.release(note=False)  # the metric may have been reset since: this is of the time before
            self._late = self._faults.late(held.elsewhere)
        return self._values


class Watch:
    """Bad values of a metric that is computed but never read: looked for whenever it is computed or reset.

    Looking starts a copy, and tells what earlier ones brought; neither waits.
    """

    def __init__(self) -> None:
        self._sent: list[Any] = []

    def look(self, watched: Sequence[Watched], resetting: bool = False) -> None:
        """Tell what has arrived, and send for more. Nothing in a graph, compiled, or on the CPU.

        Where a reset follows, what the states hold is sent for in any case, unless that was done and nothing
        was counted since: it is nowhere else.
        """
        owed = [one for one in watched if one[0].device.type == "cuda" and one[0].may_be_owed()]
        if not (owed and may_look()):
            return
        arrived, waiting = taken(self)
        if not (self._known(owed) if resetting else waiting):
            PENDING.append((weakref.ref(self), CheckedReading(None, owed)))
            self._sent = [(weakref.ref(held), held._version) for held in _watched_tensors(owed)]
        look_for_gone()
        deliver([one for reading in arrived for one in reading.complaints()])

    def _known(self, owed: Sequence[Watched]) -> bool:
        """Whether what the states hold now is what was sent for last."""
        held = _watched_tensors(owed)
        return (
            len(held) == len(self._sent)
            and all(
                ref() is one and version == one._version
                for (ref, version), one in zip(self._sent, held, strict=True)
            )
            and not any(part.replayed for part, _ in owed)
        )

    def __reduce__(self) -> Any:
        return Watch, ()


def _watched_tensors(owed: Sequence[Watched]) -> list[Tensor]:
    return [held for part, _ in owed for held in part.watched()]


def may_look() -> bool:
    """Whether nothing is being compiled or captured in a graph now, of which looking would become a part."""
    return not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing()


PENDING: list[tuple[weakref.ref[Watch] | None, CheckedReading]] = []
"""Bad values on their way, and who sent for them: None where nobody is left."""


def taken(owner: Watch | None) -> tuple[list[CheckedReading], bool]:
    """What has arrived for `owner` (None: for those that are gone), which is pending no more, and whether
    there is more.
    """
    own = [one for one in PENDING if (None if one[0] is None else one[0]()) is owner]
    arrived = [one for one in own if one[1].ready()]
    PENDING[:] = [one for one in PENDING if one not in arrived]
    return [reading for _, reading in arrived], len(arrived) < len(own)


def look_for_gone(errors: bool = False) -> None:
    """Tell what has arrived of metrics that are gone, and of functions, and send for more; does not wait.

    Raises:
        RuntimeError: one takes bad values for an error, and `errors` are not only to be warned of.
    """
    arrived, waiting = taken(None)
    if GONE and not waiting:
        PENDING.append((None, CheckedReading(None, [(part, part.names) for part in GONE])))
        GONE.clear()
    deliver([one for reading in arrived for one in reading.complaints()], errors)


INHERITED: weakref.WeakKeyDictionary[Statistic, list[int]] = weakref.WeakKeyDictionary()
"""Statistics that were there when this process was forked, and how often each tensor had been written to."""


def _writes(part: Statistic) -> list[int]:
    return [held._version for held in part.watched()]


@atexit.register
def tell_the_rest() -> None:
    """When the process ends: what nobody was told of. **This waits** for the device."""
    left = [part for part in (*LIVE, *GONE) if part.may_be_owed()]
    left = [part for part in left if part not in INHERITED or INHERITED[part] != _writes(part)]
    several: list[CheckedReading | Statistic] = [*(reading for _, reading in PENDING), *left]
    found: list[str] = []
    for one in several:
        with suppress(RuntimeError):  # of a device that is no more: then nothing can be said of this one
            reading = CheckedReading(None, [(one, one.names)]) if isinstance(one, Statistic) else one
            found += [said.message for said in reading.complaints() if said is not None]
    PENDING.clear()
    GONE.clear()
    for message in sorted(set(found)):
        sys.stderr.write(f"gapless.metrics: {message}\n")


def _in_process_of_multiprocessing(tell: Callable[[], None]) -> None:
    """Such a process ends without what `atexit` knows; what its parent's metrics met, the parent tells."""
    PENDING.clear()
    GONE.clear()
    INHERITED.update((part, _writes(part)) for part in LIVE if part.may_be_owed())
    Finalize(None, tell, exitpriority=0)


register_after_fork(tell_the_rest, _in_process_of_multiprocessing)
if parent_process() is not None:
    _in_process_of_multiprocessing(tell_the_rest)


class Every:
    """Readings taken every so many updates and handed on, in order, when they have arrived."""

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

    def updated(self, metrics: Any) -> None:
        """Take note of an update of `metrics`."""
        self._count += 1
        if self._count % self.updates == 0:
            self._pending.append((self._count, metrics.read(self.async_op)))
            if self.reset:
                metrics.reset()
        self.poll()

    def poll(self) -> None:
        """Hand on what has arrived; does not wait."""
        while self._pending and self._pending[0][1].ready():
            update, reading = self._pending.popleft()
            self.callback(update, reading.result())

    def finish(self) -> None:
        """Hand on everything that is under way. **This waits** for it."""
        while self._pending:
            update, reading = self._pending.popleft()
            self.callback(update, reading.result())
