"""Find calls in which the host waits for the device, and what caused them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gapless.analyze.profile.lines import HostPlace
from gapless.model import Mechanism, Site
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
    "aten::masked_select",
    "aten::repeat_interleave",
    "aten::bincount",
    "aten::_to_sparse",
    "aten::_coalesce",
    "aten::_local_sparse",
)
_INDEXING = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
_MOVES = {"aten::to", "aten::_to_copy"}
_STATUS = ("aten::_linalg_check_errors", "aten::linalg_", "aten::_linalg_", "aten::cholesky")


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
        to_device = timeline.names_where(lambda name: "HtoD" in name or "HostToDevice" in name)
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


def site_of_wait(place: HostPlace, copy: str) -> Site:
    """Return the wait at `place` as a site; `copy` is the name of the awaited device copy, or "".

    Operators of a profile carry no arguments, so the cause of the wait is derived from the operators around
    the call.
    """
    mechanism, operator, call, detail = _explain_wait(place, copy)
    return Site(
        operator=operator,
        mechanism=mechanism,
        call=call,
        detail=detail,
        stack=place.stack,
        node=place.node,
        forward=place.forward,
    )


def _explain_wait(place: HostPlace, copy: str) -> tuple[Mechanism, str, str, str]:
    """Return mechanism, operator, call and detail of a wait."""
    around = [name for name in place.operators if name.startswith("aten::")]
    outer = around[-1] if around else ""
    bare = _cuda_name(place.name)
    if _ALLOCATOR.match(place.name):
        return "free", bare, place.call, ""
    if any(name in _READS for name in around):
        return "read", *_explain_read(around, place)
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
    if "DtoD" in copy and not _MOVES.isdisjoint(around):
        # ROCm calls copies of pinned memory so; a blocking `to` to the host does not use pinned memory.
        return "h2d", outer, place.call, "pinned"
    if outer:
        return "values", outer, place.call, ""
    return "explicit", bare, place.call, ""


def _explain_read(around: list[str], place: HostPlace) -> tuple[str, str, str]:
    """Return operator, call and detail of a value that is read; the operator is the one the user wrote."""
    outer = around[-1]
    if "aten::is_nonzero" in around:
        call = place.call or "Tensor.__bool__"
    else:
        call = place.call or ("Tensor.item" if outer == "aten::item" else "")
    return ("aten::_local_scalar_dense" if outer in _READS else outer), call, ""


def _cuda_name(name: str) -> str:
    """Return CUDA's name of a HIP call: the rules know one spelling only."""
    return "cuda" + name[3:] if name.startswith("hip") else name
