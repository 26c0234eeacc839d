"""Files of other programs, and of PyTorch's other recorders: what they are, and what to record instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_PROFILER = (
    "record with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) and "
    "export_chrome_trace(), or run gapless profile"
)
_SNAPSHOT = (
    "record with torch.cuda.memory._record_memory_history() and save with torch.cuda.memory._dump_snapshot()"
)
_SAME_RUN = f"profile the same run with PyTorch: {_PROFILER}"


@dataclass(frozen=True)
class Foreign:
    """A kind of file that Gapless does not read: what it is, and what to do instead."""

    title: str
    instead: str = _SAME_RUN

    def refusal(self, path: str) -> str:
        """In one line."""
        return f"{path} is {self.title}: {self.instead}"


Sign = Callable[[bytes, str], bool]


def _begins(*starts: bytes) -> Sign:
    return lambda data, name: data.startswith(starts)


def _named(*endings: str) -> Sign:
    return lambda data, name: name.lower().endswith(endings)


def _has(pattern: bytes) -> Sign:
    """Whether the text of a JSON file has `pattern` where it begins."""
    compiled = re.compile(pattern)
    return lambda data, name: data.lstrip(_BLANK)[:1] in (b"{", b"[") and bool(compiled.search(data))


def _line(pattern: bytes) -> Sign:
    """Whether the first line is a table's head that has `pattern`."""
    compiled = re.compile(pattern)
    return lambda data, name: bool(compiled.search(data.lstrip(_BLANK).split(b"\n", 1)[0][:4096]))


def _database(*tables: bytes) -> Sign:
    return lambda data, name: data.startswith(_SQLITE) and any(table in data for table in tables)


def _xplane(data: bytes, name: str) -> bool:
    """A message whose first field is a plane with a name such as ``/host:CPU``."""
    if data.lstrip(_BLANK)[:1] in (b"{", b"["):
        return False
    return name.endswith("xplane.pb") or (data[:1] == b"\n" and bool(_PLANE.search(data[:_PLANES])))


def _event_file(data: bytes, name: str) -> bool:
    """Records with a length and a checksum, the first of which names its version."""
    return b"brain.Event:" in data[:64] or (not data and "tfevents" in name)


def _timeline_page(data: bytes, name: str) -> bool:
    """A page with one picture in it, as `export_memory_timeline` writes it."""
    return data.lstrip(_BLANK)[:1] == b"<" and b"Memory Timeline HTML" in data[:_PLANES]


_BLANK = b" \t\r\n\xef\xbb\xbf\0"
_SQLITE = b"SQLite format 3\0"
_PLANE = re.compile(rb"/(?:host|device):[A-Za-z0-9:_-]+")
_PLANES = 1 << 16
"""Bytes in which the name of one of the first planes stands."""

_ASCEND = b'"Ascend Hardware"'
_KINETO = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|Operator|user_annotation|python_function|cuda_runtime|Runtime|kernel|Kernel)"'
    rb'|"deviceProperties"\s*:'
)
"""What PyTorch's profiler writes, whatever names its events have."""
_KINDS: tuple[tuple[Sign, Foreign], ...] = (
    (_named(".nsys-rep", ".qdrep", ".qdstrm"), Foreign("a report of Nsight Systems")),
    (_named(".ncu-rep"), Foreign("a report of Nsight Compute")),
    (_begins(b"NVR\0"), Foreign("a report of Nsight Compute")),
    (_database(b"rocpd_", b"rocpd"), Foreign("a database of rocprof")),
    (
        _database(b"CUPTI_ACTIVITY", b"TARGET_INFO", b"NVTX_EVENTS", b"StringIds"),
        Foreign("a database that Nsight Systems exported"),
    ),
    (_event_file, Foreign("a TensorBoard event file", f"it contains scalars and no profile; {_PROFILER}")),
    (
        _xplane,
        Foreign("a profile of JAX or TensorFlow (xplane.pb)", "Gapless explains PyTorch training only"),
    ),
    (
        _has(
            rb'"schema"\s*:\s*"[^"]*chakra|"schema"\s*:[^{]{0,400}"nodes"\s*:|"nodes"\s*:\s*\[\s*\{[^{}]*"ctrl_deps"'
        ),
        Foreign(
            "a PyTorch execution trace (ExecutionTraceObserver)",
            f"it has operators without times; {_PROFILER}",
        ),
    ),
    (_has(rb'"rocprofiler-sdk-tool"|"ROCProfiler|"rocprof'), Foreign("a result of rocprof")),
    (
        _line(rb'"?(?:Kind|Index|Name)"?,.*(?:Agent_Id|KernelName|Kernel_Name|TotalDurationNs|gpu-id)'),
        Foreign("a table of rocprof"),
    ),
    (
        _has(rb'"(?:Ascend Hardware|CANN)"|"ascend_pytorch_profiler"|"torch_npu'),
        Foreign("a profile of an Ascend NPU", "Gapless reads profiles of NVIDIA, AMD and Intel GPUs only"),
    ),
    (_has(rb'"viztracer_metadata"'), Foreign("a trace of VizTracer")),
    (_has(rb"speedscope\.app/file-format-schema"), Foreign("a profile of py-spy or speedscope")),
    (
        _has(rb'"beginningOfTime"[\s\S]*"Total ExecuteCompiler"|"name"\s*:\s*"ExecuteCompiler"'),
        Foreign("a time trace of Clang"),
    ),
    (
        _has(rb'"metadata"\s*:\s*\{\s*"highres-ticks"|"/host:CPU"|"/device:GPU:\d+ \(pid'),
        Foreign("a trace of JAX or TensorFlow", "Gapless explains PyTorch training only"),
    ),
    (
        _has(rb'"product-version"\s*:\s*"(?:Headless)?Chrome|"CrBrowserMain"|"CrRendererMain"'),
        Foreign("a trace of the browser Chrome"),
    ),
    (_timeline_page, Foreign("a picture of PyTorch's memory timeline", _SNAPSHOT)),
    (
        _has(rb"^\s*\[\s*\[\s*-?\d+\s*,\s*[0-3]\s*,\s*-?\d+\s*,\s*(?:-?\d+|null)\s*\]"),
        Foreign("a raw memory timeline of torch.profiler", _SNAPSHOT),
    ),
    (
        _has(rb"^\s*\[\s*\[[-\d\s.,eE+]*(?:\]\s*,\s*\[\s*(?:\[|\])|\Z)"),
        Foreign("a memory timeline of torch.profiler", _SNAPSHOT),
    ),
    (_begins(b"memray"), Foreign("a recording of memray", f"it is about the CPU's memory; {_SNAPSHOT}")),
    (_begins(b"PERFILE2"), Foreign("a recording of perf")),
    (
        _begins(b"\xfd7zXZ\0"),
        Foreign("compressed with xz", "unpack it first, or compress it with gzip"),
    ),
    (_begins(b"BZh"), Foreign("compressed with bzip2", "unpack it first, or compress it with gzip")),
    (_begins(b"7z\xbc\xaf\x27\x1c"), Foreign("a 7z archive", "unpack it first")),
)


def foreign(data: bytes, name: str) -> Foreign | None:
    """What the file `name` that begins with `data` is, if it is one of another program; else None."""
    if data.lstrip(_BLANK)[:1] in (b"{", b"[") and _KINETO.search(data) and _ASCEND not in data:
        return None
    return next((kind for sign, kind in _KINDS if sign(data, name)), None)
