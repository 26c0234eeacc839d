"""Link device work to the calls that launched it, and classify calls and copies by name."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gapless.trace.timeline import Bools, Ints, Timeline, WorkKind

_STREAM = re.compile(r"(cuda|hip|cu)StreamSynchronize")
_EVENT = re.compile(r"(cuda|hip|cu)EventSynchronize")
_DEVICE = re.compile(r"(cuda|hip)(Device|Thread)Synchronize|(cu|hip)CtxSynchronize")
_COPY = re.compile(r"(cuda|hip|hipDrv)Memcpy|cuMemcpy")
_ASYNCHRONOUS = re.compile(r"(cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async")
_HOST_COPY = re.compile(r"hipMemcpyWithStream")
"""What PyTorch calls on AMD for a blocking copy between host and device, and for nothing else."""
_MEMORY = re.compile(
    r"(cuda|hip)(Free|Malloc|HostAlloc|HostFree|HostMalloc|HostRegister|HostUnregister|MemPool)"
    r"|(cu|hip)Mem(Alloc|Free|Unmap|Release|Map|Create|SetAccess|Pool)"
)
_POLL = re.compile(r"(cuda|hip|cu)(Event|Stream)Query")


@dataclass(frozen=True)
class CallNames:
    """What a call of each name of a timeline does."""

    stream_sync: Bools
    event_sync: Bools
    device_sync: Bools
    copy: Bools
    asynchronous_copy: Bools
    memory: Bools
    poll: Bools


def classify_call_names(timeline: Timeline) -> CallNames:
    """Classify every name once."""
    return CallNames(
        *(
            timeline.names_where(pattern.match)
            for pattern in (_STREAM, _EVENT, _DEVICE, _COPY, _ASYNCHRONOUS, _MEMORY, _POLL)
        )
    )


@dataclass(frozen=True)
class CopyKinds:
    """For each device operation, whether it is a copy between host and device, and the kind of host memory.

    `pageable` and `pinned` are both False if the profile does not say (AMD). ROCm reports a copy of pinned
    memory as one within the device ("DtoD"): a blocking one is taken for a read, as most are.
    """

    to_host: Bools
    to_device: Bools
    pageable: Bools
    pinned: Bools


def classify_copies(timeline: Timeline) -> CopyKinds:
    """Classify copies by their names ("Memcpy DtoH (Device -> Pageable)") and those of their calls."""
    work, call = timeline.work, timeline.launchers
    memcpy = work.kind == WorkKind.MEMCPY

    def has_text(text: str) -> Bools:
        flags: Bools = memcpy & timeline.names_where(lambda name: text in name)[work.name]
        return flags

    read = has_text("DtoD") & (call >= 0)
    if read.any():
        read &= timeline.names_where(_HOST_COPY.match)[timeline.host.name[call]]
    return CopyKinds(
        to_host=has_text("DtoH") | read,
        to_device=has_text("HtoD"),
        pageable=has_text("Pageable"),
        pinned=has_text("Pinned"),
    )


def number_streams(timeline: Timeline) -> tuple[Ints, Ints, Ints]:
    """Return the stream number of each device operation, and the device and stream id of each number."""
    work = timeline.work
    if not len(work):
        none = np.empty(0, np.int64)
        return none, none, none
    devices, device = np.unique(work.device, return_inverse=True)
    names, name = np.unique(work.stream, return_inverse=True)
    distinct, number = np.unique(device.reshape(-1) * len(names) + name.reshape(-1), return_inverse=True)
    return (
        number.reshape(-1).astype(np.int64),
        devices[distinct // len(names)],
        names[distinct % len(names)],
    )


@dataclass(frozen=True)
class LaunchLinks:
    """Links between the calls of a timeline and its device work; computed once and shared.

    `call` is the launching call of each device operation (-1: none), `stream` the number of its stream.
    `launched` orders operations by launch time, `launches` are these times.
    """

    names: CallNames
    copies: CopyKinds
    call: Ints
    stream: Ints
    stream_device: Ints
    stream_id: Ints
    launched: Ints
    launches: Ints


def find_links(timeline: Timeline) -> LaunchLinks:
    """Link calls and device work. Work without a call counts as launched when it began."""
    call = timeline.launchers
    number, device, stream = number_streams(timeline)
    time = timeline.work.start.copy()
    linked = call >= 0
    time[linked] = timeline.host.start[call[linked]]
    order = np.argsort(time, kind="stable")
    return LaunchLinks(
        classify_call_names(timeline),
        classify_copies(timeline),
        call,
        number,
        device,
        stream,
        order,
        time[order],
    )
