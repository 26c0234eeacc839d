"""What Gapless reads of an event in a Kineto file; everything else in the file is skipped unparsed."""

from __future__ import annotations

import msgspec

_NAMES = {
    "external_id": "External id",
    "external_id_old": "external id",
    "blocks_per_sm": "blocks per SM",
    "occupancy": "est. achieved occupancy %",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "call_stack": "Call stack",
    "collective": "Collective name",
    "group": "Process Group Name",
    "group_size": "Group size",
    "elements": "In msg nelems",
    "graph_node": "graph node id",
    "device_type": "Device Type",
    "device_id": "Device Id",
    "address": "Addr",
    "memory": "Bytes",
    "allocated": "Total Allocated",
    "reserved": "Total Reserved",
    "sync_stream": "wait_on_stream",
    "sync_record": "wait_on_cuda_event_record_corr_id",
    "sync_kind": "cuda_sync_kind",
}


class Args(msgspec.Struct, frozen=True, gc=False, rename=lambda name: _NAMES.get(name, name)):
    """The arguments of an event, of all kinds of events; -1 and "" stand for what is not there."""

    external_id: int | str = -1
    external_id_old: int | str = -1
    correlation: int = -1
    device: int | str = -1
    stream: int | str = -1
    bytes: int | str = -1
    blocks_per_sm: float | str = -1.0
    occupancy: float | str = -1.0
    sequence: int = -1
    forward_thread: int = 0
    call_stack: str = ""
    collective: str = ""
    group: str = ""
    group_size: int = 0
    elements: int = -1
    graph_node: int = -1
    device_type: int = -1
    device_id: int = -1
    address: int = -1
    memory: int = 0
    allocated: int = -1
    reserved: int = -1
    sync_stream: int | str = -1
    sync_record: int | str = -1
    sync_kind: str = ""
    name: str = ""
    labels: str = ""


NO_ARGS = Args()


class TraceEvent(msgspec.Struct, gc=False):
    """One element of ``traceEvents``. `ts` and `dur` are microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = 0.0
    dur: float = -1.0
    id: int | str = -1
    args: Args = NO_ARGS


class Device(msgspec.Struct, gc=False, rename={"multiprocessors": "numSms", "memory": "totalGlobalMem"}):
    """A GPU, as the profiler describes it."""

    id: int = -1
    name: str = ""
    multiprocessors: int = 0
    memory: int = 0


class Distributed(msgspec.Struct, gc=False):
    """Where this process stands among the ranks."""

    rank: int = -1
    world_size: int = 0
    backend: str = ""


class Head(msgspec.Struct, gc=False, rename={"base": "baseTimeNanoseconds", "trace_name": "traceName"}):
    """What a file says of itself, before and after its events."""

    base: int = 0
    trace_name: str = ""
    devices: list[Device] = msgspec.field(default_factory=list, name="deviceProperties")
    distributed: Distributed = msgspec.field(default_factory=Distributed, name="distributedInfo")
    with_stack: int = 0
    profile_memory: int = 0
    record_shapes: int = 0
    with_flops: int = 0
    with_modules: int = 0
