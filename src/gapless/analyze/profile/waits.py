"""Find calls in which the host waits for the device, and what caused them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from gapless.analyze.profile.lines import HostPlace
from gapless.model import INDEX_OR_VALUE, Mechanism, Site
from gapless.replay.waits import WaitKind
from gapless.replay.waits import find_waits as replayed
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline

_PROFILER = re.compile(r"torch/(?:profiler|autograd)/profiler\.py\(\d+\): ")
_PASSED_ON = re.compile(r"<built-in |torch/(?:cuda|accelerator|utils)/")
_ALLOCATOR = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostMalloc|HostFree|MallocHost|FreeHost|HostUnregister|HostRegister)"
    r"|^(?:cu|hip)Mem(?:Alloc|Free|Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree|Host)"
)
_READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"}
_ANSWERS = {"aten::equal", "aten::allclose", "aten::is_same_size"}
_SIZES = (
    "aten::nonzero",
    "aten::_unique",
    "aten::unique",
    "aten::isin",
    "aten::masked_select",
    "aten::masked_scatter_backward",
    "aten::_to_sparse",
    "aten::_coalesce",
    "aten::_local_sparse",
)
"""Beginnings of operators whose every read is of the size of their result, by whatever they read it."""
_CHECKED_SIZES = ("aten::repeat_interleave", "aten::bincount")
"""Operators that read their size, and values to check them."""
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::addmm_", "aten::mv", "aten::hspmm"}
"""Products that read something only of sparse factors: how many elements these have."""
_READ_INDICES = {"aten::index", "aten::_unsafe_index"}
_WRITING = {"aten::index_put_", "aten::index_put", "aten::_index_put_impl_", "aten::_unsafe_index_put"}
_MOVES = {"aten::to", "aten::_to_copy"}
_STATUS = ("aten::_linalg_check_errors", "aten::linalg_", "aten::_linalg_", "aten::cholesky")
_VALUES = {"aten::linalg_matrix_exp", "aten::mode"}
"""Operators that plan their work by values that they copy to the host."""
_OWN_COPIES = {"aten::mode", "aten::to_padded_tensor"}
"""Operators that send something of their own to the device, which no caller can pin."""
_FACTORIES = {"torch.tensor", "torch.as_tensor"}
"""Python functions that send a number to the device."""
_MAX_VALUE_BYTES = 16
"""The largest element, a complex number of doubles: a value on the host that is written has one."""

CopiedKind = Literal["", "value", "index"]
"""What a write through an index sends to the device: the value, an index, or "" if that is not known."""
COPIED_KINDS: tuple[CopiedKind, ...] = get_args(CopiedKind)


@dataclass(frozen=True)
class HostWaits:
    """Waits of the host, ordered as their rows in `Timeline.host`.

    `copy` is the device copy that the call made or, for a synchronization, whose end it awaits; else -1.
    `counts` is False for a copy followed by its synchronization: the two are one wait, and only the second is
    counted. `earlier` are the rows of waits before the first launch: what they wait for began before the
    recording, so they are not in `rows`.
    """

    rows: Ints
    copy: Ints
    counts: Bools
    earlier: Ints


def find_waits(timeline: Timeline) -> HostWaits:
    """Return the calls in which the program waits, according to the replay, without the profiler's own."""
    all_waits = replayed(timeline)
    table = all_waits.take((all_waits.kind != WaitKind.MEMORY) & ~all_waits.final)
    paired = table.sync >= 0
    first, second = table.blocks, paired
    rows = np.concatenate([table.host[first], table.sync[second]])
    copy = np.concatenate([table.copy[first], table.copy[second]])
    counts = np.concatenate([~paired[first], np.ones(int(second.sum()), bool)])
    order = np.argsort(rows, kind="stable")
    order = order[~_are_of_profiler(timeline, rows[order])]
    rows, copy, counts = rows[order], copy[order], counts[order]
    inside = _are_after_first_launch(timeline, rows, copy)
    return HostWaits(rows[inside], copy[inside], counts[inside], rows[~inside])


def _are_of_profiler(timeline: Timeline, rows: Ints) -> Bools:
    """Return which of these calls the profiler itself makes, when it starts and stops.

    Only direct callers count: frames already open when the profiler started seem to last to the end.
    """
    is_of_profiler = np.zeros(len(rows), bool)
    if not any(map(_PROFILER.search, timeline.names)):
        return is_of_profiler
    host, names = timeline.host, timeline.names
    for position, row in enumerate(rows.tolist()):
        for around in timeline.with_ancestors(row):
            name = names[host.name[around]]
            if host.kind[around] == HostKind.FRAME and not _PASSED_ON.search(name):
                is_of_profiler[position] = _PROFILER.search(name) is not None
                break
    return is_of_profiler


def _are_after_first_launch(timeline: Timeline, rows: Ints, copy: Ints) -> Bools:
    """Return which of these calls can wait for something that the profile shows."""
    launchers = timeline.launchers
    launchers = launchers[launchers >= 0]
    first_launch = int(timeline.host.start[launchers].min()) if len(launchers) else 0
    inside: Bools = timeline.host.start[rows] > first_launch
    if len(timeline.work):
        # A copy to the device waits for its own staging, whatever ran before.
        to_device = timeline.names_where(is_to_device)
        inside |= (copy >= 0) & to_device[timeline.work.name[np.maximum(copy, 0)]]
    return inside


def allocator_calls(timeline: Timeline) -> Ints:
    """Return the rows of calls that take memory from the driver or give it back."""
    is_allocator = timeline.names_where(_ALLOCATOR.match)
    host = timeline.host
    return (
        np.flatnonzero((host.kind == HostKind.CALL) & is_allocator[host.name])
        if len(is_allocator)
        else is_allocator.astype(np.int64)
    )


def copied_kind(timeline: Timeline, row: int, copy: int) -> CopiedKind:
    """Return what the device copy `copy` of the call in `row` holds, for a write through an index.

    A value has no dimensions, and an index has at least one. Where shapes were not recorded, more bytes than
    an element has are an index; fewer may be either.
    """
    if copy < 0:
        return ""
    for around in timeline.with_ancestors(row):
        if timeline.names[timeline.host.name[around]] == "aten::copy_":
            sizes = timeline.arguments(around).sizes
            if len(sizes) > 1:
                return "index" if sizes[1] else "value"
    return "index" if timeline.work.bytes[copy] > _MAX_VALUE_BYTES else ""


def site_of_wait(place: HostPlace, copy: str, kind: CopiedKind = "") -> Site:
    """Return the wait at `place` as a site; `copy` is the name of the awaited device copy, or "", and `kind`
    what it holds.

    The cause of the wait is derived from the operators around the call.
    """
    mechanism, operator, call, detail = _explain_wait(place, copy, kind)
    return Site(
        operator=operator,
        mechanism=mechanism,
        call=call,
        detail=detail,
        stack=place.stack,
        node=place.node,
        forward=place.forward,
    )


def _explain_wait(place: HostPlace, copy: str, kind: CopiedKind) -> tuple[Mechanism, str, str, str]:
    """Return mechanism, operator, call and detail of a wait."""
    around = [name for name in place.operators if name.startswith("aten::")]
    outer = around[-1] if around else ""
    bare = _cuda_name(place.name)
    if _ALLOCATOR.match(place.name):
        return "free", bare, place.call, ""
    mechanism = _mechanism_of_operators(around, copy)
    if mechanism == "read":
        return "read", *_explain_read(around, place)
    if mechanism is not None:
        return mechanism, outer, place.call, ""
    memory = "pageable" if "ageable" in copy else "pinned" if "inned" in copy else ""
    if is_to_host(copy):
        return "d2h", outer or bare, place.call, memory
    if is_to_device(copy):
        return (
            "h2d",
            outer or bare,
            place.call,
            _detail_of_copy(outer, place.call, memory or "pageable", kind),
        )
    if "DtoD" in copy and not _MOVES.isdisjoint(around):
        # ROCm calls copies of pinned memory so; a blocking `to` to the host does not use pinned memory.
        return "h2d", outer, place.call, "pinned"
    if outer:
        return "values", outer, place.call, ""
    return "explicit", bare, place.call, ""


def is_to_host(copy: str) -> bool:
    """Whether the device copy of that name goes to the host."""
    return "DtoH" in copy or "DeviceToHost" in copy


def is_to_device(copy: str) -> bool:
    """Whether the device copy of that name goes to the device."""
    return "HtoD" in copy or "HostToDevice" in copy


def _mechanism_of_operators(around: list[str], copy: str) -> Mechanism | None:
    """Return how the operators `around` a call wait, innermost first; None if they do not show it.

    What the operator needs comes before how it gets it: many read a size or an error code with `item`.
    """
    outer = around[-1] if around else ""
    reads = any(name in _READS for name in around)
    if any(name.startswith(_SIZES) for name in around):
        return "size"
    if not _VALUES.isdisjoint(around) and not is_to_device(copy):
        return "values"
    if any(name.startswith(_STATUS) for name in around) and not is_to_device(copy):
        return "status"
    if not _PRODUCTS.isdisjoint(around) and (reads or is_to_host(copy)):
        return "size"
    if reads or outer in _ANSWERS:
        return "read"
    return "size" if any(name.startswith(_CHECKED_SIZES) for name in around) else None


def _detail_of_copy(outer: str, call: str, memory: str, kind: CopiedKind) -> str:
    """Return the detail of a copy to the device from `memory` inside `outer`, called by `call`."""
    if outer in _READ_INDICES:
        return "index"
    if outer in _WRITING:
        return kind or INDEX_OR_VALUE
    if outer == "aten::copy_" and kind == "value" and memory == "pageable":
        return "value"
    is_number = kind == "value" or (call == "torch.tensor" and kind != "index")
    if call in _FACTORIES and is_number and memory == "pageable":
        return "scalar"
    return "" if outer in _OWN_COPIES else memory


def _explain_read(around: list[str], place: HostPlace) -> tuple[str, str, str]:
    """Return operator, call and detail of a value that is read; the operator is the one the user wrote."""
    outer = around[-1]
    call = place.call or {"aten::is_nonzero": "Tensor.__bool__", "aten::item": "Tensor.item"}.get(outer, "")
    return ("aten::_local_scalar_dense" if outer in _READS else outer), call, ""


def _cuda_name(name: str) -> str:
    """Return CUDA's name of a HIP call: the rules know one spelling only."""
    return "cuda" + name[3:] if name.startswith("hip") else name
