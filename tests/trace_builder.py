"""Build traces by hand, in the formats that old and new versions of the profiler write.

Times are microseconds since the beginning of the profile::

    trace = Trace()
    with trace.span("step", "ProfilerStep#1", 0, 100):
        trace.operator("aten::mm", 5, 20)
        trace.launch("gemm", 10, kernel=(30, 40))
    timeline = trace.timeline()

Dialects: ``new`` (since 2.4: fractions of a microsecond, a base time), ``middle`` (1.12 to 2.3: whole
microseconds since 1970, ``ac2g`` flows) and ``old`` (1.8 to 1.11: other names of categories, thread ids as
strings, call stacks instead of frames).
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Dialect = Literal["new", "middle", "old"]
Json = dict[str, Any]

BASE = 1_700_000_000_000_000_000
_ORIGIN: dict[str, int] = {"new": 4_203_669_603, "middle": 1_700_004_203_669, "old": 1_623_142_623_460}
_CATEGORIES = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "cuda_runtime": "Runtime",
    "cuda_driver": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}
_LAUNCH = {"amd": "hipLaunchKernel"}
_COPY = {"amd": "hipMemcpyWithStream"}


@dataclass
class Trace:
    """One profile. What is added returns what ties other events to it: an external id or a correlation."""

    dialect: Dialect = "new"
    vendor: Literal["nvidia", "amd"] = "nvidia"
    gpu: str = ""
    pid: int = 4000
    main: int = 4000
    device: int = 0
    rank: int = -1
    world_size: int = 0
    backend: str = "nccl"
    with_stack: bool = True
    origin: int = -1
    """Milliseconds (as an integer) that the profile begins at, on the clock of the dialect; -1: its usual."""
    events: list[Json] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    head: Json = field(default_factory=dict)
    external: int = 0
    correlation: int = 100
    addresses: int = 0x7F0000000000
    allocated: int = 0
    reserved: int = 0

    def __post_init__(self) -> None:
        if self.origin < 0:
            self.origin = _ORIGIN[self.dialect]
        if not self.gpu:
            self.gpu = "AMD Instinct MI300X" if self.vendor == "amd" else "NVIDIA A100-SXM4-40GB"

    # Host -----------------------------------------------------------------------------------------------

    def operator(
        self,
        name: str,
        start: float,
        dur: float,
        *,
        thread: int | None = None,
        sequence: int | None = None,
        forward_thread: int | None = None,
        stack: str = "",
        **args: Any,
    ) -> int:
        """An operator; `stack` is ``file(line): function;…``, innermost first. Returns its external id."""
        self.external += 1
        args = {"External id": self.external, self._index: self.external - 1, **args}
        if sequence is not None:
            args["Sequence number"] = sequence
            args["Fwd thread id"] = forward_thread or 0
        if stack:
            args["Call stack"] = stack
        self._span("cpu_op", name, start, dur, self.pid, self._thread(thread), args)
        return self.external

    def annotation(self, name: str, start: float, dur: float, *, thread: int | None = None) -> int:
        """A ``record_function`` range."""
        self.external += 1
        args = {"External id": self.external, self._index: self.external - 1}
        self._span("user_annotation", name, start, dur, self.pid, self._thread(thread), args)
        return self.external

    def step(self, number: int, start: float, dur: float, *, thread: int | None = None) -> int:
        """A step of the profiler's schedule."""
        return self.annotation(f"ProfilerStep#{number}", start, dur, thread=thread)

    def frame(
        self, name: str, start: float, dur: float, *, thread: int | None = None, parent: int | None = None
    ) -> int:
        """A Python function, ``file(line): function``; the old dialect has none. Returns its Python id."""
        number = len(self.frames) + 1
        self.frames.append(number)
        if self.dialect != "old":
            args = {"Python parent id": parent, "Python id": number}
            self._span("python_function", name, start, dur, self.pid, self._thread(thread), args)
        return number

    def call(
        self,
        name: str,
        start: float,
        dur: float,
        *,
        thread: int | None = None,
        external: int | None = None,
        driver: bool = False,
        **args: Any,
    ) -> int:
        """A call of the runtime or the driver. Returns its correlation."""
        self.correlation += 1
        args = {**self._tied(external), "cbid": 211, "correlation": self.correlation, **args}
        category = "cuda_driver" if driver else "cuda_runtime"
        self._span(category, name, start, dur, self.pid, self._thread(thread), args)
        return self.correlation

    def overhead(self, name: str, start: float, dur: float) -> None:
        """Time the profiler took."""
        self._span("overhead", name, start, dur, -1, 0, {})

    # Device ---------------------------------------------------------------------------------------------

    def kernel(
        self,
        name: str,
        start: float,
        dur: float,
        *,
        correlation: int = 0,
        stream: int | str = 7,
        device: int | None = None,
        external: int | None = None,
        **args: Any,
    ) -> None:
        """A kernel; `args` replace what the profiler says of it (names with spaces through ``**{...}``)."""
        args = {
            "queued": 0,
            "registers per thread": 32,
            "shared memory": 0,
            "blocks per SM": 1.5,
            "warps per SM": 12.0,
            "grid": [162, 1, 1],
            "block": [256, 1, 1],
            "est. achieved occupancy %": 38,
            **args,
        }
        self._work("kernel", name, start, dur, correlation, stream, device, external, args)

    def memcpy(
        self,
        kind: str,
        start: float,
        dur: float,
        *,
        bytes: int = 4096,
        correlation: int = 0,
        stream: int | str = 7,
        device: int | None = None,
        external: int | None = None,
    ) -> None:
        """A copy; `kind` as in ``HtoD (Pageable -> Device)``."""
        args = {"bytes": bytes, "memory bandwidth (GB/s)": 1.5}
        self._work("gpu_memcpy", f"Memcpy {kind}", start, dur, correlation, stream, device, external, args)

    def memset(
        self, start: float, dur: float, *, bytes: int = 4096, correlation: int = 0, stream: int | str = 7
    ) -> None:
        """A memset."""
        args = {"bytes": bytes, "memory bandwidth (GB/s)": 1.5}
        self._work("gpu_memset", "Memset (Device)", start, dur, correlation, stream, None, None, args)

    def launch(
        self,
        name: str,
        start: float,
        dur: float = 5,
        *,
        kernel: tuple[float, float],
        thread: int | None = None,
        stream: int | str = 7,
        external: int | None = None,
        call: str = "",
        **args: Any,
    ) -> int:
        """A launching call, its kernel (start, duration), the flow between them. Returns the correlation."""
        call = call or _LAUNCH.get(self.vendor, "cudaLaunchKernel")
        number = self.call(call, start, dur, thread=thread, external=external)
        self.kernel(name, *kernel, correlation=number, stream=stream, external=external, **args)
        self._async(number, start, self._thread(thread), kernel[0], stream)
        return number

    def copy(
        self,
        kind: str,
        start: float,
        dur: float,
        *,
        copy: tuple[float, float],
        bytes: int = 4096,
        thread: int | None = None,
        stream: int | str = 7,
        external: int | None = None,
    ) -> int:
        """A call that copies, the copy (start, duration), the flow between them. Returns the correlation."""
        name = _COPY.get(self.vendor, "cudaMemcpyAsync")
        number = self.call(name, start, dur, thread=thread, external=external)
        self.memcpy(kind, *copy, bytes=bytes, correlation=number, stream=stream, external=external)
        self._async(number, start, self._thread(thread), copy[0], stream)
        return number

    def wait(self, start: float, dur: float, *, thread: int | None = None, stream: bool = True) -> int:
        """The host waits: the call of the vendor for one stream or for the whole device."""
        maker = "hip" if self.vendor == "amd" else "cuda"
        name = f"{maker}{'Stream' if stream else 'Device'}Synchronize"
        return self.call(name, start, dur, thread=thread)

    def sync(
        self,
        kind: str,
        start: float,
        dur: float,
        *,
        correlation: int = 0,
        stream: int = 7,
        on_stream: int = -1,
        record: int = -1,
        tid: int | None = None,
    ) -> None:
        """What the driver says of a wait (``Stream Sync``, ``Event Sync``, ``Stream Wait Event``)."""
        args: Json = {"cuda_sync_kind": kind, "stream": stream, "correlation": correlation}
        args |= {"device": self.device, "context": 1}
        if kind in ("Event Sync", "Stream Wait Event"):
            args |= {"wait_on_stream": on_stream, "wait_on_cuda_event_record_corr_id": record}
        self._span("cuda_sync", kind, start, dur, self.device, stream if tid is None else tid, args)

    # Between --------------------------------------------------------------------------------------------

    def backward_flow(
        self, forward: tuple[float, int | None], backward: tuple[float, int | None], number: int | None = None
    ) -> None:
        """The link from an operator of forward to one of backward: (start, thread) of each."""
        number = number if number is not None else len(self.events)
        for ph, (time, thread) in (("s", forward), ("f", backward)):
            event = {"ph": ph, "id": number, "pid": self.pid, "tid": self._thread(thread)}
            event |= {"ts": self.time(time), "cat": "fwdbwd", "name": "fwdbwd"}
            self.events.append(event | ({"bp": "e"} if ph == "f" else {}))

    def memory(
        self,
        time: float,
        bytes: int,
        *,
        allocated: int | None = None,
        reserved: int | None = None,
        address: int | None = None,
        device_type: int = 1,
        thread: int | None = None,
    ) -> None:
        """An allocation (`bytes` above 0) or a free; the totals go on by themselves."""
        self.allocated = self.allocated + bytes if allocated is None else allocated
        self.reserved = max(self.reserved, self.allocated) if reserved is None else reserved
        args: Json = {"Device Type": device_type, "Device Id": self.device if device_type else -1}
        args |= {"Addr": self.addresses if address is None else address, "Bytes": bytes}
        args |= {"Total Allocated": self.allocated, "Total Reserved": self.reserved}
        event: Json = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": self.pid}
        if self.dialect == "old":
            del event["cat"]
            del args["Total Allocated"], args["Total Reserved"]
        tid = self._thread(thread)
        # The oldest versions write the thread of everything but memory as a string.
        event |= {"tid": int(tid) if self.dialect == "old" else tid, "ts": self.time(time), "args": args}
        self.events.append(event)

    def named(self, name: str, thread: int | None = None) -> None:
        """The name of a thread."""
        event: Json = {"name": "thread_name", "ph": "M", "ts": self.time(0), "pid": self.pid}
        self.events.append(event | {"tid": self._thread(thread), "args": {"name": name}})

    def raw(self, **event: Any) -> None:
        """Any event, exactly as given."""
        self.events.append(event)

    @contextmanager
    def span(self, kind: str, name: str, start: float, dur: float, **more: Any) -> Iterator[int]:
        """The same as calling ``operator``, ``frame``, ``annotation``…, for the sake of indentation."""
        if kind == "step":
            yield self.annotation(name, start, dur, **more)
        else:
            yield getattr(self, kind)(name, start, dur, **more)

    # Out ------------------------------------------------------------------------------------------------

    def time(self, micro: float) -> int | float:
        """The time as the file says it."""
        if self.dialect == "new":
            return round(self.origin * 1000 + micro, 3)
        return self.origin * 1000 + round(micro)

    def document(self) -> Json:
        """The whole file as an object."""
        device = {"id": self.device, "name": self.gpu, "totalGlobalMem": 42_481_549_312}
        device |= {"computeMajor": 8, "computeMinor": 0, "warpSize": 32, "numSms": 108}
        content: Json = {"schemaVersion": 1, "deviceProperties": [device]}
        if self.rank >= 0:
            content["distributedInfo"] = {
                "backend": self.backend,
                "rank": self.rank,
                "world_size": self.world_size,
                "pg_count": 1,
            }
        if self.dialect != "old":
            content |= {"record_shapes": 0, "with_stack": int(self.with_stack), "profile_memory": 1}
        content |= self.head
        content["traceEvents"] = [*self._numbered(), *self._ending()]
        content["traceName"] = "/tmp/trace.json"
        if self.dialect == "new":
            content |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE}
        return content

    def text(self) -> bytes:
        """The file, laid out as the profiler lays it out: an event to a few lines."""
        document = self.document()
        before = {k: v for k, v in document.items() if k not in ("traceEvents", "traceName")}
        after = {"traceName": document["traceName"]}
        for key in ("displayTimeUnit", "baseTimeNanoseconds"):
            if key in before:
                after[key] = before.pop(key)
        out = io.StringIO()
        out.write("{\n" + "".join(f"  {json.dumps(k)}: {json.dumps(v)},\n" for k, v in before.items()))
        out.write('  "traceEvents": [\n  ')
        out.write(",\n  ".join(_laid_out(event) for event in document["traceEvents"]))
        out.write("\n  ],\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in after.items()))
        out.write("\n}")
        return out.getvalue().encode()

    def write(self, path: Path) -> Path:
        """Write the file, compressed where its name ends in ``.gz``, and return `path`."""
        data = self.text()
        path.write_bytes(gzip.compress(data, 1, mtime=0) if path.suffix == ".gz" else data)
        return path

    def timeline(self) -> Any:
        """What the reader makes of it."""
        from gapless.trace.read import read_bytes

        return read_bytes(self.text())

    def in_order(self) -> Trace:
        """The same with numbers of the driver's in the order of calls, where calls were added out of it."""
        calls = [event for event in self.events if str(event.get("cat")).endswith(("runtime", "Runtime"))]
        numbers = sorted(event["args"]["correlation"] for event in calls)
        calls.sort(key=lambda event: event["ts"])
        old = [event["args"]["correlation"] for event in calls]
        new = dict(zip(old, numbers, strict=True))
        for event in self.events:
            args = event.get("args", {})
            if "correlation" in args:
                args["correlation"] = new.get(args["correlation"], args["correlation"])
            if event.get("cat") in ("ac2g", "async"):
                event["id"] = new.get(event["id"], event["id"])
        return self

    # Inside ---------------------------------------------------------------------------------------------

    @property
    def _index(self) -> str:
        return "Profiler Event Index" if self.dialect == "old" else "Ev Idx"

    def _thread(self, thread: int | None) -> int | str:
        number = self.main if thread is None else thread
        return str(number) if self.dialect == "old" else number

    def _tied(self, external: int | None) -> Json:
        """The external id of a call or of device work: up to 2.3 those without one bear the correlation."""
        key = "external id" if self.dialect == "old" else "External id"
        if external is not None:
            return {key: external}
        return {} if self.dialect == "new" else {key: self.correlation}

    def _span(
        self, category: str, name: str, start: float, dur: float, pid: int, tid: int | str, args: Json
    ) -> None:
        if self.dialect == "old":
            if category == "overhead":
                return
            category = _CATEGORIES.get(category, category)
        length = round(dur, 3) if self.dialect == "new" else round(dur)
        event: Json = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
        event |= {"ts": self.time(start), "dur": length}
        self.events.append(event | ({"args": args} if args else {}))

    def _work(
        self,
        category: str,
        name: str,
        start: float,
        dur: float,
        correlation: int,
        stream: int | str,
        device: int | None,
        external: int | None,
        args: Json,
    ) -> None:
        place = self.device if device is None else device
        tied = self._tied(external) if correlation else {}
        args = {**tied, "device": place, "context": 1, "stream": stream, "correlation": correlation, **args}
        tid = f"stream {stream}" if self.dialect == "old" else stream
        self._span(category, name, start, dur, place, tid, args)

    def _async(self, number: int, start: float, thread: int | str, begun: float, stream: int | str) -> None:
        name = "async" if self.dialect == "old" else "ac2g"
        tid = f"stream {stream}" if self.dialect == "old" else stream
        for ph, place, row, time in (("s", self.pid, thread, start), ("f", self.device, tid, begun)):
            event: Json = {"ph": ph, "id": number, "pid": place, "tid": row, "ts": self.time(time)}
            event |= {"cat": name, "name": name}
            self.events.append(event | ({"bp": "e"} if ph == "f" else {}))

    def _numbered(self) -> Iterator[Json]:
        """The events, with the profiler's own numbers of Python functions, which follow all others."""
        number = self.external
        for event in self.events:
            if event.get("cat") != "python_function" or "Python id" not in event.get("args", {}):
                yield event
                continue
            yield event | {"args": event["args"] | {self._index: number}}
            number += 1

    def _ending(self) -> list[Json]:
        """What the profiler writes after everything else."""
        times = [float(e["ts"]) for e in self.events if isinstance(e.get("ts"), (int, float))]
        ends = [
            float(e["ts"]) + float(e.get("dur") or 0) for e in self.events if "ts" in e and e.get("ph") == "X"
        ]
        begin = min([*times, self.time(0)])
        dur = max(ends, default=begin) - begin
        whole: Json = {"ph": "X", "cat": "Trace", "ts": begin, "dur": dur, "pid": "Spans"}
        whole |= {"tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0}}
        label: Json = {"name": "process_name", "ph": "M", "ts": self.time(0), "pid": self.pid, "tid": 0}
        end: Json = {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": ""}
        return [
            label | {"args": {"name": "python"}},
            whole,
            end | {"ts": max(times, default=self.time(0))},
        ]


def _laid_out(event: Json) -> str:
    args = event.get("args")
    head = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in event.items() if k != "args")
    if args is None:
        return "{\n    " + head + "\n  }"
    inner = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in args.items())
    return "{\n    " + head + ',\n    "args": {\n      ' + inner + "\n    }\n  }"


def training(
    dialect: Dialect = "new", *, steps: int = 2, vendor: Literal["nvidia", "amd"] = "nvidia", rank: int = -1
) -> Trace:
    """A small training loop: a batch that is copied, forward, backward on its own thread, ``loss.item()``.

    The times are whole microseconds, so that all dialects say the same.
    """
    trace = Trace(dialect, vendor=vendor, rank=rank, world_size=2 if rank >= 0 else 0)
    engine = 4077
    trace.named("thread 4000 (python)")
    trace.named("thread 4077 (pt_autograd_0)", engine)
    stack = "/work/train.py(12): train;/work/train.py(40): <module>"
    trace.frame("/work/train.py(40): <module>", 0, 1000 * steps, parent=None)
    trace.frame("/work/train.py(12): train", 2, 1000 * steps - 4, parent=1)
    for number in range(steps):
        now = 1000 * number + 10
        trace.step(number, now, 980)
        op = trace.operator("aten::to", now + 10, 60, stack=stack)
        trace.copy("HtoD (Pageable -> Device)", now + 20, 40, copy=(now + 25, 30), bytes=1 << 20, external=op)
        op = trace.operator("aten::linear", now + 100, 60, sequence=number, stack=stack)
        inner = trace.operator("aten::addmm", now + 110, 45, sequence=number, stack=stack)
        trace.memory(now + 112, 4096)
        trace.launch("gemm", now + 120, 8, kernel=(now + 140, 200), external=inner)
        outer = trace.operator(
            "autograd::engine::evaluate_function: AddmmBackward0",
            now + 200,
            90,
            thread=engine,
            sequence=number,
            forward_thread=1,
        )
        op = trace.operator("AddmmBackward0", now + 205, 80, thread=engine, sequence=number, forward_thread=1)
        assert outer < op
        trace.launch("gemm_grad", now + 220, 8, kernel=(now + 340, 250), thread=engine, external=op)
        if dialect != "old":
            trace.backward_flow((now + 110, None), (now + 205, engine), number + 1)
        op = trace.operator("aten::item", now + 300, 310, stack=stack)
        op = trace.operator("aten::_local_scalar_dense", now + 302, 306, stack=stack)
        trace.copy("DtoH (Device -> Pageable)", now + 305, 6, copy=(now + 592, 2), bytes=4, external=op)
        trace.wait(now + 312, 290)
        trace.memory(now + 700, -4096)
    return trace
