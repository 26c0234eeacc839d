"""Recognize files of other programs and of PyTorch's other recorders, and say what to record instead."""

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
class ForeignFormat:
    """A kind of file that Gapless does not read, and what to do instead."""

    title: str
    instead: str = _SAME_RUN

    def refusal(self, path: str) -> str:
        """Return a line that says what the file is and what to do instead."""
        return f"{path} is {self.title}: {self.instead}"


FormatTest = Callable[[bytes, str], bool]


def _starts_with(*starts: bytes) -> FormatTest:
    return lambda data, name: data.startswith(starts)


def _has_ending(*endings: str) -> FormatTest:
    return lambda data, name: name.lower().endswith(endings)


def _json_contains(pattern: bytes) -> FormatTest:
    """Test whether a JSON file contains `pattern` near its beginning."""
    compiled = re.compile(pattern)
    return lambda data, name: data.lstrip(_BLANK)[:1] in (b"{", b"[") and bool(compiled.search(data))


def _header_matches(pattern: bytes) -> FormatTest:
    """Test whether the first line is a table header that matches `pattern`."""
    compiled = re.compile(pattern)
    return lambda data, name: bool(compiled.search(data.lstrip(_BLANK).split(b"\n", 1)[0][:4096]))


def _has_tables(*tables: bytes) -> FormatTest:
    return lambda data, name: data.startswith(_SQLITE) and any(table in data for table in tables)


def _is_xplane(data: bytes, name: str) -> bool:
    """Whether this is a protobuf message whose first field is a plane with a name such as ``/host:CPU``."""
    if data.lstrip(_BLANK)[:1] in (b"{", b"["):
        return False
    return name.endswith("xplane.pb") or (data[:1] == b"\n" and bool(_PLANE.search(data[:_PLANE_BYTES])))


def _is_event_file(data: bytes, name: str) -> bool:
    """Whether these are TensorBoard records, the first of which names its version."""
    return b"brain.Event:" in data[:64] or (not data and "tfevents" in name)


def _is_timeline_page(data: bytes, name: str) -> bool:
    """Whether this is a page with a single image, as `export_memory_timeline` writes it."""
    return data.lstrip(_BLANK)[:1] == b"<" and b"Memory Timeline HTML" in data[:_PLANE_BYTES]


_BLANK = b" \t\r\n\xef\xbb\xbf\0"
_SQLITE = b"SQLite format 3\0"
_PLANE = re.compile(rb"/(?:host|device):[A-Za-z0-9:_-]+")
_PLANE_BYTES = 1 << 16
"""Bytes at the beginning that contain the name of one of the first planes."""

_ASCEND = b'"Ascend Hardware"'
_ASCEND_NPU = ForeignFormat(
    "a profile of an Ascend NPU",
    "Gapless reads profiles of NVIDIA and AMD GPUs, and of Intel GPUs without their syncs",
)
_KINETO = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|Operator|user_annotation|python_function|cuda_runtime|Runtime|kernel|Kernel)"'
    rb'|"deviceProperties"\s*:'
)
"""Text that PyTorch's profiler writes, whatever its events are called."""
_KINDS: tuple[tuple[FormatTest, ForeignFormat], ...] = (
    (_has_ending(".nsys-rep", ".qdrep", ".qdstrm"), ForeignFormat("a report of Nsight Systems")),
    (_has_ending(".ncu-rep"), ForeignFormat("a report of Nsight Compute")),
    (_starts_with(b"NVR\0"), ForeignFormat("a report of Nsight Compute")),
    (_has_tables(b"rocpd_", b"rocpd"), ForeignFormat("a database of rocprof")),
    (_has_tables(b"CANN_API", b"PYTORCH_API", b"COMPUTE_TASK_INFO", b"NPU_INFO"), _ASCEND_NPU),
    (
        _has_tables(b"CUPTI_ACTIVITY", b"TARGET_INFO", b"NVTX_EVENTS", b"StringIds"),
        ForeignFormat("a database that Nsight Systems exported"),
    ),
    (
        _is_event_file,
        ForeignFormat("a TensorBoard event file", f"it contains scalars and no profile; {_PROFILER}"),
    ),
    (
        _is_xplane,
        ForeignFormat("a profile of JAX or TensorFlow (xplane.pb)", "Gapless explains PyTorch training only"),
    ),
    (
        _json_contains(
            rb'"schema"\s*:\s*"[^"]*chakra|"schema"\s*:[^{]{0,400}"nodes"\s*:|"nodes"\s*:\s*\[\s*\{[^{}]*"ctrl_deps"'
        ),
        ForeignFormat(
            "a PyTorch execution trace (ExecutionTraceObserver)",
            f"it has operators without times; {_PROFILER}",
        ),
    ),
    (_json_contains(rb'"rocprofiler-sdk-tool"|"ROCProfiler|"rocprof'), ForeignFormat("a result of rocprof")),
    (
        _header_matches(
            rb'"?(?:Kind|Index|Name)"?,.*(?:Agent_Id|KernelName|Kernel_Name|TotalDurationNs|gpu-id)'
        ),
        ForeignFormat("a table of rocprof"),
    ),
    (
        _json_contains(rb'"(?:Ascend Hardware|CANN)"|"ascend_pytorch_profiler"|"torch_npu'),
        _ASCEND_NPU,
    ),
    (_json_contains(rb'"viztracer_metadata"'), ForeignFormat("a trace of VizTracer")),
    (
        _json_contains(rb"speedscope\.app/file-format-schema"),
        ForeignFormat("a profile of py-spy or speedscope"),
    ),
    (
        _json_contains(rb'"beginningOfTime"[\s\S]*"Total ExecuteCompiler"|"name"\s*:\s*"ExecuteCompiler"'),
        ForeignFormat("a time trace of Clang"),
    ),
    (
        _json_contains(rb'"metadata"\s*:\s*\{\s*"highres-ticks"|"/host:CPU"|"/device:GPU:\d+ \(pid'),
        ForeignFormat("a trace of JAX or TensorFlow", "Gapless explains PyTorch training only"),
    ),
    (
        _json_contains(rb'"product-version"\s*:\s*"(?:Headless)?Chrome|"CrBrowserMain"|"CrRendererMain"'),
        ForeignFormat("a trace of the browser Chrome"),
    ),
    (_is_timeline_page, ForeignFormat("a picture of PyTorch's memory timeline", _SNAPSHOT)),
    (
        _json_contains(rb"^\s*\[\s*\[\s*-?\d+\s*,\s*[0-3]\s*,\s*-?\d+\s*,\s*(?:-?\d+|null)\s*\]"),
        ForeignFormat("a raw memory timeline of torch.profiler", _SNAPSHOT),
    ),
    (
        _json_contains(rb"^\s*\[\s*\[[-\d\s.,eE+]*(?:\]\s*,\s*\[\s*(?:\[|\])|\Z)"),
        ForeignFormat("a memory timeline of torch.profiler", _SNAPSHOT),
    ),
    (
        _starts_with(b"memray"),
        ForeignFormat("a recording of memray", f"it is about the CPU's memory; {_SNAPSHOT}"),
    ),
    (_starts_with(b"PERFILE2"), ForeignFormat("a recording of perf")),
    (
        _starts_with(b"\xfd7zXZ\0"),
        ForeignFormat("compressed with xz", "unpack it first, or compress it with gzip"),
    ),
    (
        _starts_with(b"BZh"),
        ForeignFormat("compressed with bzip2", "unpack it first, or compress it with gzip"),
    ),
    (_starts_with(b"7z\xbc\xaf\x27\x1c"), ForeignFormat("a 7z archive", "unpack it first")),
)


def identify_foreign(data: bytes, name: str) -> ForeignFormat | None:
    """Return the foreign format of the file `name` that begins with `data`, if it has one."""
    if data.lstrip(_BLANK)[:1] in (b"{", b"[") and _KINETO.search(data) and _ASCEND not in data:
        return None
    return next((kind for sign, kind in _KINDS if sign(data, name)), None)
