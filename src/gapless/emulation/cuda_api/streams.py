"""Base classes of torch's own streams and events in ``torch.cuda.streams``.

The emulated device runs everything at once and in order, so a stream is only an id, queued work is done, and
an event is the moment of its recording. What is emulated is waiting: the host waits in ``synchronize`` of a
stream or an event and nowhere else. ``Event.elapsed_time`` does not wait: it raises unless both events are
complete (c10/cuda/CUDAEvent.h: elapsed_time, and CUDA's cudaEventElapsedTime).
"""

from __future__ import annotations

import importlib.util
import itertools
from types import ModuleType
from typing import Any, ClassVar

import torch

from gapless.emulation.cuda_api.runtime import CUDA_DEVICE_TYPE, Runtime, refusal
from gapless.emulation.races.distances import Position

# The real classes; torch's names are replaced while a device is installed.
_TorchStream: Any = torch.Stream
_TorchEvent: Any = torch.Event

_STREAMS_PER_POOL = 32
"""Streams per priority, used in turn (``kStreamsPerPool`` in ``c10/cuda/CUDAStream.h``)."""
_LOWEST_PRIORITY, _HIGHEST_PRIORITY = 0, -3  # c10/cuda/CUDAStream.h: max_compile_time_stream_priorities = 4
_HANDLE_BASE = 0x5_0000_0000
_STREAM_IDS = ("stream_id", "device_index", "device_type")

_TIMES_ARE_THE_HOSTS = "times between CUDA events are those of the emulation on the CPU, not of a GPU"


class StreamBase(_TorchStream):
    """Stands in for ``torch._C._CudaStreamBase``."""

    runtime: ClassVar[Runtime]
    _slots: ClassVar[Any] = None

    def __new__(
        cls,
        priority: int = 0,
        stream_id: int = 0,
        device_index: int = 0,
        device_type: int = 0,
        stream_ptr: int = 0,
    ) -> Any:
        if stream_id or device_index or device_type:
            index = device_index
        else:
            index = cls.runtime.current()
            stream_id = stream_ptr or cls._next_of_pool(priority)
            cls.runtime.device.races.follow_all()
        return super().__new__(cls, stream_id=stream_id, device_index=index, device_type=CUDA_DEVICE_TYPE)

    def __init__(self, *_: Any, **__: Any) -> None:
        """Everything is done in `__new__`, with torch's own signature."""

    @classmethod
    def _next_of_pool(cls, priority: int) -> int:
        """Return the next id of the pool, round-robin as in CUDA; ids of the pool are odd."""
        level = -min(max(priority, _HIGHEST_PRIORITY), _LOWEST_PRIORITY)
        slot = next(cls._slots) % _STREAMS_PER_POOL
        return 1 + 2 * (level * _STREAMS_PER_POOL + slot)

    @property
    def cuda_stream(self) -> int:
        """The ``cudaStream_t`` as an integer: 0 for the default stream."""
        return handle_of(self.stream_id)

    native_handle = cuda_stream

    @property
    def priority(self) -> int:
        """0, or negative for higher priority."""
        return -((self.stream_id - 1) // 2 // _STREAMS_PER_POOL) if self.stream_id % 2 else 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Lowest and highest priority."""
        return _LOWEST_PRIORITY, _HIGHEST_PRIORITY

    def query(self) -> bool:
        """Whether queued work is done: always, except at the first query while late copies are emulated."""
        self.runtime.device.graphs.refuse_query("torch.cuda.Stream.query")
        if self.runtime.device.races.is_stream_pending(self.device_index, self.stream_id):
            return False
        self.runtime.device.races.order_host_after_stream(self.device_index, self.stream_id)
        return True

    def is_capturing(self) -> bool:
        """Whether the stream is capturing a CUDA graph."""
        return bool(self.runtime.device.graphs.is_capturing(self.device_index, self.stream_id))

    def synchronize(self) -> None:
        """Count a wait of the host."""
        self.runtime.device.races.order_host_after_stream(self.device_index, self.stream_id)
        self.runtime.device.wait("cudaStreamSynchronize", "explicit", call="torch.cuda.Stream.synchronize")

    def __enter__(self) -> Any:
        runtime, index = self.runtime, self.device_index
        before = (runtime.current(), index, runtime.current_stream_id(index))
        runtime._local.entered = [*getattr(runtime._local, "entered", ()), before]
        runtime.set_current_stream(self.stream_id, index)
        return self

    def __exit__(self, *_: object) -> None:
        runtime = self.runtime
        current, index, stream_id = runtime._local.entered.pop()
        runtime.set_current_stream(stream_id, index)
        runtime.select(current)


class EventBase(_TorchEvent):
    """Stands in for ``torch._C._CudaEventBase``."""

    runtime: ClassVar[Runtime]
    _handles: ClassVar[Any] = None

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        return super().__new__(cls, device="cpu")

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self._timing = bool(enable_timing)
        self._external = bool(external)
        self._captured: Any = None
        self._index = -1
        self._recorded_at = 0.0
        self._position = Position(0, 0)
        self._handle = 0
        self._moment: Any = None
        self._queried: Any = None

    @property
    def device(self) -> torch.device | None:
        """The device of the stream that first recorded the event; None before."""
        return torch.device("cuda", self._index) if self._handle else None

    @property
    def cuda_event(self) -> int:
        """The ``cudaEvent_t`` as an integer: 0 until it is recorded."""
        return self._handle

    event_id = cuda_event

    def record(self, stream: Any) -> None:
        """Record the event in `stream`."""
        if not self._handle:
            self._index = stream.device_index
            self._handle = next(self._handles)
        if self._index != stream.device_index:
            raise RuntimeError(
                f"Event device {self._index} does not match recording stream's device {stream.device_index}."
            )
        self._recorded_at = self.runtime.device.clock()
        self._moment = self.runtime.device.races.record_event(self._index, stream.stream_id)
        self._position = self.runtime.device.races.distances.record_event(self.runtime.device.tick)
        if not self._external:
            self._captured = self.runtime.device.graphs.record_event(self._index, stream.stream_id)
        self.runtime.device.record_stream_call("record", stream.stream_id, self._handle, self._index)

    def wait(self, stream: Any) -> None:
        """Make later work in `stream` wait for the event; the host does not wait."""
        self.runtime.device.graphs.wait_for_event(
            stream.device_index, stream.stream_id, self._captured, bool(self._handle), self._external
        )
        self.runtime.device.races.wait_for_event(stream.device_index, stream.stream_id, self._moment)
        if self._handle:
            self.runtime.device.record_stream_call(
                "await", stream.stream_id, self._handle, stream.device_index
            )

    def query(self) -> bool:
        """Whether recorded work is done: always, except at the first query while late copies are emulated."""
        self._report_query("torch.cuda.Event.query")
        runtime = getattr(self, "runtime", None)
        if runtime is not None and self._queried is not self._moment:
            self._queried = self._moment
            if runtime.device.races.is_pending(self._moment):
                return False
        self._report_reached(queried=True)
        return True

    def _report_query(self, call: str) -> None:
        runtime = getattr(self, "runtime", None)
        if runtime is not None:
            runtime.device.graphs.query_event(self._captured, call)

    def _report_reached(self, queried: bool = False) -> None:
        runtime = getattr(self, "runtime", None)  # an event may outlive the device
        if runtime is not None:
            runtime.device.races.order_host_after(self._moment, queried)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between two recorded events by the emulation's clock."""
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._handle and end_event._handle):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        self._report_reached(queried=True)
        end_event._report_reached(queried=True)
        self.runtime.device.note(_TIMES_ARE_THE_HOSTS)
        return float((end_event._recorded_at - self._recorded_at) * 1000.0)

    def synchronize(self) -> None:
        """Count a wait of the host, unless the event is so old that the wait only orders accesses."""
        if self._captured is not None:
            self._report_query("torch.cuda.Event.synchronize")
        runtime = getattr(self, "runtime", None)
        races = runtime.device.races if runtime is not None else None
        of_a_copy = races is not None and races.flights.any_right_before(self._position.launches)
        self._report_reached()
        if not self._handle or runtime is None or races is None:
            return
        only_orders = races.distances.only_orders(self._position, runtime.device.tick)
        if only_orders and runtime.device.graphs.capture is None:
            return
        runtime.device.wait(
            "cudaEventSynchronize",
            "explicit",
            call="torch.cuda.Event.synchronize",
            detail="copy" if of_a_copy else "",
        )

    ipc_handle = refusal("torch.cuda.Event.ipc_handle", "Events are not shared between emulated processes.")
    from_ipc_handle = classmethod(
        refusal("torch.cuda.Event.from_ipc_handle", "Events are not shared between emulated processes.")
    )


def handle_of(stream_id: int) -> int:
    """The ``cudaStream_t`` of a stream id: 0 for the default stream, the id itself for external ones."""
    return stream_id if stream_id % 2 == 0 else _HANDLE_BASE + 0x80 * stream_id


def fresh_counters() -> tuple[Any, Any]:
    """New counters of the stream pool and of event handles."""
    return itertools.count(), itertools.count(_HANDLE_BASE + 0x1000_0000, 0x40)


def torch_classes() -> ModuleType:
    """Execute ``torch.cuda.streams`` again on `StreamBase` and `EventBase`, which must be in ``torch._C``.

    So ``Stream``, ``ExternalStream`` and ``Event`` are those of the running torch version.
    """
    spec = importlib.util.find_spec("torch.cuda.streams")
    if spec is None or spec.loader is None:
        raise ImportError("torch.cuda.streams cannot be found")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generic_classes(stream_class: Any, event_class: Any) -> tuple[Any, Any]:
    """Return ``torch.Stream`` and ``torch.Event`` classes that create emulated ones for CUDA devices."""

    class Stream(_TorchStream, metaclass=_Front):
        of: ClassVar[Any] = _TorchStream

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            if _names_stream(args, kwargs):
                ids = {**dict(zip(_STREAM_IDS, args, strict=False)), **kwargs}
                emulated = ids.get("device_type") == CUDA_DEVICE_TYPE
                return stream_class(**ids) if emulated else _TorchStream(*args, **kwargs)
            device, rest = _device_argument(args, kwargs)
            if device.type == "cuda":
                return stream_class(device=device, **rest)
            return _TorchStream(device, **rest)

    class Event(_TorchEvent, metaclass=_Front):
        of: ClassVar[Any] = _TorchEvent

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            device, rest = _device_argument(args, kwargs)
            return event_class(**rest) if device.type == "cuda" else _TorchEvent(device, **rest)

    for front in (Stream, Event):
        front.__module__, front.__qualname__ = "torch", front.__name__
    return Stream, Event


class _Front(type):
    """Makes instances of the class `of` instances of its replacement."""

    of: Any

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.of)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.of)


def _names_stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return "stream_id" in kwargs or len(args) == 3


def _device_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.device, dict[str, Any]]:
    """Return the device argument (default: CUDA) and the other arguments."""
    rest = dict(kwargs)
    device = args[0] if args else rest.pop("device", None)
    if device is None:
        return torch.device("cuda"), rest
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device), rest
