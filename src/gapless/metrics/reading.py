"""Values on their way from the device to the host, for which nobody has to wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.faults import deliver_state
from gapless.metrics.global_states import GlobalStates
from gapless.metrics.statistic import Statistic, Told

Watched = tuple[Statistic, tuple[str, ...]]


class Reading:
    """Results on their way to the host.

    On a GPU the copy into pinned memory runs on a stream of its own; on the CPU everything is there at once.
    """

    def __init__(self, values: Any, watched: Sequence[Watched] = ()) -> None:
        self._watched: list[tuple[Statistic, tuple[str, ...], Told]] = []
        faults = []
        for part, names in watched:
            state = part.fault_state()
            if state is not None:
                self._watched.append((part, names, part.told))
                faults.append(state)
        found: list[Tensor] = []
        self._shape = take_apart(values, found)
        self._arrival = Arrival([*found, *faults])

    def ready(self) -> bool:
        """Whether the values have arrived; does not wait."""
        return self._arrival.ready()

    def result(self) -> Any:
        """The results as tensors of the host, in the form ``compute`` gives them.

        **This waits** where the values have not arrived yet.

        Raises:
            RuntimeError: a metric met values that it takes for an error.
        """
        arrived = self._arrival.wait()
        faults = arrived[len(arrived) - len(self._watched) :]
        for (part, names, told), state in zip(self._watched, faults, strict=True):
            deliver_state(part, names, told, state.tolist())
        return put_together(self._shape, iter(arrived))

    def __await__(self) -> Generator[Any, None, Any]:
        """``await reading`` gives way to other tasks until the values have arrived."""
        while not self.ready():
            yield
        return self.result()


class Later(Reading):
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
            self._pending = Reading(None, watched)
            if pending is not None:
                pending.result()

    def forget(self) -> None:
        """Something else brings them."""
        self._pending = None

    def __reduce__(self) -> Any:
        return Watch, ()


class Arrival:
    """Tensors copied to the host together, one copy per device and dtype."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._like = [(value.shape, value.dtype, value.device) for value in tensors]
        self._events: list[Any] = []
        self._landed: dict[Any, Tensor] = {}
        flat: dict[Any, list[Tensor]] = {}
        for value in tensors:
            flat.setdefault((value.dtype, value.device), []).append(value.reshape(-1))
        for key, parts in flat.items():
            self._landed[key] = self._send(parts[0].clone() if len(parts) == 1 else torch.cat(parts))

    def _send(self, value: Tensor) -> Tensor:
        if value.device.type != "cuda":
            return value.cpu()
        stream = side_stream(value.device)
        stream.wait_stream(torch.cuda.current_stream(value.device))
        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        with torch.cuda.stream(stream):
            host.copy_(value, non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
        value.record_stream(stream)
        self._events.append(event)
        return host

    def ready(self) -> bool:
        """Whether all of them are there."""
        return all(event.query() for event in self._events)

    def wait(self) -> list[Tensor]:
        """All of them, once they are there."""
        if not self.ready():
            for event in self._events:
                event.synchronize()
        offsets = dict.fromkeys(self._landed, 0)
        found = []
        for shape, dtype, device in self._like:
            start = offsets[dtype, device]
            offsets[dtype, device] = end = start + shape.numel()
            found.append(self._landed[dtype, device][start:end].view(shape))
        return found


_streams: dict[torch.device, Any] = {}


def side_stream(device: torch.device) -> Any:
    """The stream on which values leave `device`."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


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


def take_apart(values: Any, into: list[Tensor]) -> Any:
    """The form of `values`, whose tensors are added to `into`."""
    if isinstance(values, Tensor):
        into.append(values)
        return Tensor
    if isinstance(values, dict):
        return {name: take_apart(value, into) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(take_apart(value, into) for value in values)
    return Plain(values)


def put_together(form: Any, tensors: Any) -> Any:
    """The opposite of :func:`take_apart`."""
    if form is Tensor:
        return next(tensors)
    if isinstance(form, dict):
        return {name: put_together(value, tensors) for name, value in form.items()}
    if isinstance(form, (list, tuple)):
        return type(form)(put_together(value, tensors) for value in form)
    return form.value


class Plain:
    """A value that is no tensor."""

    def __init__(self, value: Any) -> None:
        self.value = value
