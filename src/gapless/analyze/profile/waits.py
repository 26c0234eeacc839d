"""Calls in which the host waits for the device, and what made them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gapless.analyze.profile.lines import Place
from gapless.model import Mechanism, Site
from gapless.replay.waits import WaitKind
from gapless.replay.waits import waits as replayed
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

    `copy` is the copy on the device that the call made or, for a synchronization, that it is the end of; else
    -1. `counts` is False for a copy whose synchronization follows: the two are one wait, and only the second
    is counted. `earlier` are the rows of waits before which nothing was launched: what they wait for began
    before the recording, and they are not among the others.
    """

    rows: Ints
    copy: Ints
    counts: Bools
    earlier: Ints


def find_waits(timeline: Timeline) -> HostWaits:
    """The calls in which the program waits, as the replay tells them; the profiler's are not its own."""
    known = replayed(timeline)
    table = known.take((known.kind != WaitKind.MEMORY) & ~known.final)
    paired = table.sync >= 0
    first, second = table.blocks, paired
    rows = np.concatenate([table.host[first], table.sync[second]])
    copy = np.concatenate([table.copy[first], table.copy[second]])
    counts = np.concatenate([~paired[first], np.ones(int(second.sum()), bool)])
    order = np.argsort(rows, kind="stable")
    order = order[~_by_the_profiler(timeline, rows[order])]
    rows, copy, counts = rows[order], copy[order], counts[order]
    inside = _after_the_first_launch(timeline, rows, copy)
    return HostWaits(rows[inside], copy[inside], counts[inside], rows[~inside])


def _by_the_profiler(timeline: Timeline, rows: Ints) -> Bools:
    """Which of these calls the profiler makes itself, where it starts and stops.

    Only what calls right away tells: frames that were running when the profiler started last to the end.
    """
    found = np.zeros(len(rows), bool)
    if not any(map(_PROFILER.search, timeline.names)):
        return found
    host, names = timeline.host, timeline.names
    for position, row in enumerate(rows.tolist()):
        for around in timeline.with_ancestors(row):
            name = names[host.name[around]]
            if host.kind[around] == HostKind.FRAME and not _PASSED_ON.search(name):
                found[position] = _PROFILER.search(name) is not None
                break
    return found


def _after_the_first_launch(timeline: Timeline, rows: Ints, copy: Ints) -> Bools:
    """Which of these calls can wait for something that the profile shows."""
    made = timeline.launchers
    made = made[made >= 0]
    begun = int(timeline.host.start[made].min()) if len(made) else 0
    inside: Bools = timeline.host.start[rows] > begun
    if len(timeline.work):
        # A copy to the device waits for its own staging, whatever ran before.
        to_device = timeline.names_where(lambda name: "HtoD" in name or "HostToDevice" in name)
        inside |= (copy >= 0) & to_device[timeline.work.name[np.maximum(copy, 0)]]
    return inside


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
    if "DtoD" in copy and not _MOVES.isdisjoint(around):
        # So ROCm calls copies of pinned memory; what `to` moves to the host, blocking, does not land in it.
        return "h2d", outer, place.call, "pinned"
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
