"""Calls in which the host waits for the device, and what made them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gapless.analyze.profile.lines import Place
from gapless.model import Mechanism, Site
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline

_SYNCHRONIZE = re.compile(
    r"^(?:cuda|hip)(?:Device|Stream|Event)Synchronize|^cu(?:Ctx|Stream|Event)Synchronize$"
)
_BLOCKING_COPY = re.compile(
    r"^(?:cuda|hip)Memcpy(?:2D|3D|ToSymbol|FromSymbol|DtoH|HtoD|WithStream)?(?:_v\d+\w*)?$"
)
_ANY_COPY = re.compile(r"^(?:cuda|hip|cu)Memcpy")
_ALLOCATOR = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostMalloc|HostFree|MallocHost|FreeHost|HostUnregister|HostRegister)"
    r"|^cuMem(?:Alloc|Free|Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree|Host)"
)
_READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"}
_ANSWERS = {"aten::equal", "aten::allclose", "aten::is_same_size"}
_SIZES = (
    "aten::nonzero",
    "aten::_unique",
    "aten::unique",
    "aten::masked_select",
    "aten::repeat_interleave",
    "aten::bincount",
    "aten::_to_sparse",
    "aten::_coalesce",
    "aten::_local_sparse",
)
_INDEXING = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
_STATUS = ("aten::_linalg_check_errors", "aten::linalg_", "aten::_linalg_", "aten::cholesky")


@dataclass(frozen=True)
class HostWaits:
    """Waits of the host, ordered as their rows in `Timeline.host`.

    `copy` is the copy on the device that the call made or (for a synchronization right after one in the same
    operator) followed, else -1. `counts` is False for a copy whose synchronization follows: the two are one
    wait, and only the second is counted. `earlier` are the rows of waits before which nothing was launched:
    what they wait for began before the recording, and they are not among the others.
    """

    rows: Ints
    copy: Ints
    counts: Bools
    earlier: Ints


def find_waits(timeline: Timeline) -> HostWaits:
    """The calls that wait: synchronizations, and copies that block because of pageable memory."""
    host, work = timeline.host, timeline.work
    names = timeline.names
    syncs = timeline.names_where(_SYNCHRONIZE.match)
    blocking = timeline.names_where(_BLOCKING_COPY.match)
    copies = timeline.names_where(_ANY_COPY.match)
    calls = host.kind == HostKind.CALL
    copying = np.flatnonzero(calls & copies[host.name]) if len(names) else np.empty(0, np.int64)
    made = launched(timeline, copying)
    pageable = timeline.names_where(lambda name: "ageable" in name)
    is_pageable = np.zeros(len(copying), bool)
    has = made >= 0
    is_pageable[has] = pageable[work.name[made[has]]]
    # Memory that never leaves the device is copied without a wait, whatever the call.
    inside = timeline.names_where(lambda name: "DtoD" in name or "DeviceToDevice" in name)
    is_inside = np.zeros(len(copying), bool)
    is_inside[has] = inside[work.name[made[has]]]
    waiting_copy = (is_pageable | blocking[host.name[copying]]) & ~is_inside if len(copying) else is_pageable
    sync_rows = np.flatnonzero(calls & syncs[host.name]) if len(names) else copying
    sync_rows = sync_rows[sync_rows != _last_of_all(timeline)]
    return _paired(timeline, copying, made, waiting_copy, sync_rows)


def _last_of_all(timeline: Timeline) -> int:
    """The synchronization with which the profiler stops: the last one, where no launch follows; else -1."""
    host = timeline.host
    named = timeline.names_where(lambda name: "DeviceSynchronize" in name or name == "cuCtxSynchronize")
    rows = np.flatnonzero((host.kind == HostKind.CALL) & named[host.name]) if len(named) else host.start
    if not len(rows):
        return -1
    last = int(rows[np.argmax(host.start[rows])])
    later = launched(timeline, np.flatnonzero((host.kind == HostKind.CALL) & (host.start > host.start[last])))
    return -1 if (later >= 0).any() else last


def _paired(timeline: Timeline, copying: Ints, made: Ints, waiting_copy: Bools, sync_rows: Ints) -> HostWaits:
    """A synchronization goes with the copy before it in the same operator."""
    parents = timeline.parents
    before = np.searchsorted(copying, sync_rows) - 1
    near = before >= 0
    candidate = copying[np.maximum(before, 0)] if len(copying) else np.zeros(len(sync_rows), np.int64)
    near &= parents[candidate] == parents[sync_rows]
    near &= parents[sync_rows] >= 0
    sync_copy = np.where(near, made[np.maximum(before, 0)] if len(made) else -1, -1)
    counts_copy = np.ones(len(copying), bool)
    counts_copy[before[near]] = False
    rows = np.concatenate([copying[waiting_copy], sync_rows])
    copy = np.concatenate([made[waiting_copy], sync_copy])
    counts = np.concatenate([counts_copy[waiting_copy], np.ones(len(sync_rows), bool)])
    order = np.argsort(rows, kind="stable")
    rows, copy, counts = rows[order], copy[order].astype(np.int64), counts[order]
    host = timeline.host
    calls = np.flatnonzero((host.kind == HostKind.CALL) & (host.correlation > 0))
    calls = calls[launched(timeline, calls) >= 0]
    begun = int(host.start[calls].min()) if len(calls) else 0
    # A copy to the device waits for its own staging, whatever ran before.
    to_device = timeline.names_where(lambda name: "HtoD" in name or "HostToDevice" in name)
    inside = host.start[rows] > begun
    if len(timeline.work):
        inside |= (copy >= 0) & to_device[timeline.work.name[np.maximum(copy, 0)]]
    return HostWaits(rows[inside], copy[inside], counts[inside], rows[~inside])


def launched(timeline: Timeline, rows: Ints) -> Ints:
    """For each of these calls the first device operation it made, or -1."""
    work = timeline.work
    if not len(work) or not len(rows):
        return np.full(len(rows), -1, np.int64)
    order = np.argsort(work.correlation, kind="stable")
    numbers = work.correlation[order]
    wanted = timeline.host.correlation[rows]
    at = np.minimum(np.searchsorted(numbers, wanted), len(order) - 1)
    return np.where((numbers[at] == wanted) & (wanted > 0), order[at], -1)


def allocator_calls(timeline: Timeline) -> Ints:
    """Rows of calls that take memory from the driver or give it back."""
    named = timeline.names_where(_ALLOCATOR.match)
    host = timeline.host
    return (
        np.flatnonzero((host.kind == HostKind.CALL) & named[host.name])
        if len(named)
        else named.astype(np.int64)
    )


def site(place: Place, copy: str) -> Site:
    """The wait at `place` as a site; `copy` is the name of the copy on the device it waits for, or "".

    Operators of a profile carry no arguments: what made the host wait follows from the chain of operators
    around the call.
    """
    mechanism, operator, call, detail = _explained(place, copy)
    return Site(
        operator=operator,
        mechanism=mechanism,
        call=call,
        detail=detail,
        stack=place.stack,
        node=place.node,
        forward=place.forward,
    )


def _explained(place: Place, copy: str) -> tuple[Mechanism, str, str, str]:
    """Mechanism, operator, call and detail of a wait."""
    around = [name for name in place.operators if name.startswith("aten::")]
    outer = around[-1] if around else ""
    bare = _cuda(place.name)
    if _ALLOCATOR.match(place.name):
        return "free", bare, place.call, ""
    if any(name in _READS for name in around):
        return "read", *_read(around, place)
    if outer in _ANSWERS:
        return "read", outer, place.call, ""
    if any(name.startswith(_SIZES) for name in around):
        return "size", outer, place.call, ""
    if any(name.startswith(_STATUS) for name in around):
        return "status", outer, place.call, ""
    memory = "pageable" if "ageable" in copy else "pinned" if "inned" in copy else ""
    if "DtoH" in copy or "DeviceToHost" in copy:
        return "d2h", outer or bare, place.call, memory
    if "HtoD" in copy or "HostToDevice" in copy:
        return "h2d", outer or bare, place.call, "index" if outer in _INDEXING else memory or "pageable"
    if outer:
        return "values", outer, place.call, ""
    return "explicit", bare, place.call, ""


def _read(around: list[str], place: Place) -> tuple[str, str, str]:
    """Operator, call and detail of a value that is read: the operator is what the user wrote."""
    outer = around[-1]
    if "aten::is_nonzero" in around:
        call = place.call or "Tensor.__bool__"
    else:
        call = place.call or ("Tensor.item" if outer == "aten::item" else "")
    return ("aten::_local_scalar_dense" if outer in _READS else outer), call, ""


def _cuda(name: str) -> str:
    """The name of a HIP call as CUDA has it: the rules know one spelling."""
    return "cuda" + name[3:] if name.startswith("hip") else name
