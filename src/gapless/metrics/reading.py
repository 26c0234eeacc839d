"""Results on their way from the device to the host, and bad values with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gapless.metrics.faults import deliver_state
from gapless.metrics.global_states import GlobalStates
from gapless.metrics.statistic import Statistic
from gapless.transfer import Reading

Watched = tuple[Statistic, tuple[str, ...]]


class CheckedReading(Reading):
    """Results on their way to the host, and with them the bad values that updates met."""

    def __init__(self, values: Any, watched: Sequence[Watched] = ()) -> None:
        states = [(part, names, part.fault_pieces()) for part, names in watched]
        self._watched = [(part, names, part.told) for part, names, state in states if state is not None]
        super().__init__((values, [state for _, _, state in states if state is not None]))

    def result(self) -> Any:
        """The results as tensors of the host, in the form ``compute`` gives them.

        **This waits** where the values have not arrived yet.

        Raises:
            RuntimeError: a metric met values that it takes for an error.
        """
        values, faults = super().result()
        for (part, names, told), state in zip(self._watched, faults, strict=True):
            deliver_state(part, names, told, state)
        return values


class PendingReading(Reading):
    """Results that are computed once the other processes have answered."""

    def __init__(self, faults: Reading, states: GlobalStates, compute: Callable[[], Any]) -> None:
        self._faults = faults
        self._states = states
        self._compute = compute
        self._values: Reading | None = None

    def ready(self) -> bool:
        """Whether the values have arrived; does not wait, and begins what follows from the answers."""
        if self._values is None and not self._states.ready():
            return False
        return self._begun().ready() and self._faults.ready()

    def result(self) -> Any:
        """As in :class:`Reading`. **This waits** for the other processes too."""
        values = self._begun()
        self._faults.result()
        return values.result()

    def _begun(self) -> Reading:
        if self._values is None:
            with self._states.held():
                self._values = Reading(self._compute())
        return self._values


class Watch:
    """Bad values of a metric that is computed but never read: looked for whenever it is computed or reset.

    Looking starts a copy, and tells what an earlier one brought; neither waits.
    """

    def __init__(self) -> None:
        self._pending: Reading | None = None

    def look(self, watched: Sequence[Watched]) -> None:
        """Tell what has arrived, and send for more. Nothing in a graph, compiled, or on the CPU."""
        if torch.compiler.is_compiling() or not any(part.device.type == "cuda" for part, _ in watched):
            return
        if torch.cuda.is_current_stream_capturing():
            return
        pending = self._pending
        if pending is None or pending.ready():
            self._pending = CheckedReading(None, watched)
            if pending is not None:
                pending.result()

    def forget(self) -> None:
        """Something else brings them."""
        self._pending = None

    def __reduce__(self) -> Any:
        return Watch, ()


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
