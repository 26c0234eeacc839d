"""Profiles of AMD's GPUs: the twin of an NVIDIA profile, as ROCm's profiler writes it, says the same."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from trace_builder import Trace

from gapless.analyze.profile.lines import PlaceIndex
from gapless.analyze.profile.waits import find_waits, site_of_wait
from gapless.model import Site
from gapless.replay.links import classify_call_names
from gapless.trace.read import read
from gapless.trace.timeline import Timeline

TRACES = Path(__file__).parents[4] / "shared" / "traces"
REAL = [
    "TraceLens-h100-gaunernst_bert-small-uncased-1016001-af4f.json.gz",
    "TraceLens-h100-google_owlv2-large-patch14-ensemble-1016001-d242.json.gz",
    "torchrec-log-resnet18-pid85866-fa7b.json.gz",
]
Json = dict[str, Any]


def twin(document: Json) -> Json:
    """The same run as ROCm's profiler would have written it.

    A blocking copy is one call there, which returns when the copy is done, and the memory of the host is not
    named; a copy of pinned memory is labelled as one within the device.
    """
    document = copy.deepcopy(document)
    events = document["traceEvents"]
    for gpu in document.get("deviceProperties", []):
        gpu["name"] = "AMD Instinct MI300X"
    calls = [
        event for event in events if event.get("ph") == "X" and str(event.get("name")).startswith("cuda")
    ]
    copies = {event["args"]["correlation"]: event for event in events if _is_copy(event)}
    gone = set()
    threads: dict[Any, list[Json]] = {}
    for call in sorted(calls, key=lambda event: event["ts"]):
        threads.setdefault((call["pid"], call["tid"]), []).append(call)
    for mine in threads.values():
        for call, following in zip(mine, [*mine[1:], None], strict=True):
            of = copies.get(call.get("args", {}).get("correlation"))
            ends = following is not None and following["name"] == "cudaStreamSynchronize"
            if of is None or "DtoD" in of["name"] or not ends:
                continue
            call["name"] = "hipMemcpyWithStream"
            call["dur"] = following["ts"] + following["dur"] - call["ts"]
            gone.add(id(following))
    for call in calls:
        call["name"] = call["name"].replace("cudaLaunchKernelExC", "hipExtModuleLaunchKernel")
        call["name"] = call["name"].replace("cuda", "hip")
    for event in copies.values():
        if "Pinned" in event["name"]:
            event["name"] = "Memcpy DtoD (Device -> Device)"
        event["name"] = event["name"].replace("Pageable", "Host")
    document["traceEvents"] = [event for event in events if id(event) not in gone]
    return document


def _is_copy(event: Json) -> bool:
    named = event.get("ph") == "X" and str(event.get("name")).startswith("Memcpy")
    return named and "correlation" in event.get("args", {})


def sites(timeline: Timeline) -> list[Site]:
    """The sites of all waits that count, in order."""
    waits, places = find_waits(timeline), PlaceIndex(timeline)
    calls = []
    for row, at, counts in zip(waits.rows, waits.copy, waits.counts, strict=True):
        if counts:
            name = timeline.names[timeline.work.name[at]] if at >= 0 else ""
            calls.append(site_of_wait(places.place(int(row)), name))
    return calls


def wait_rows(timeline: Timeline) -> list[tuple[str, str, str, object]]:
    return [(site.mechanism, site.operator, site.call, site.line) for site in sites(timeline)]


@pytest.mark.parametrize("name", REAL)
def test_the_twin_of_a_real_profile_lists_the_same_reads(name, tmp_path):
    path = TRACES / name
    if not path.exists():
        pytest.skip("the profiles are not here")
    document = json.loads(gzip.decompress(path.read_bytes()))
    other = tmp_path / "twin.json"
    other.write_text(json.dumps(twin(document)))
    here, amd_rows = wait_rows(read(str(path))), wait_rows(read(str(other)))
    assert here == amd_rows
    assert any(mechanism in ("read", "size", "d2h", "h2d") for mechanism, *_ in here)


READS = {
    "item": ["aten::item", "aten::_local_scalar_dense"],
    "branch": ["aten::is_nonzero", "aten::item", "aten::_local_scalar_dense"],
    "nonzero": ["aten::nonzero"],
    "mask": ["aten::index", "aten::nonzero"],
    "equal": ["aten::equal", "aten::item", "aten::_local_scalar_dense"],
    "cpu": ["aten::to", "aten::_to_copy", "aten::copy_"],
}


CASES = [(read, memory) for read in sorted(READS) for memory in ("Pageable", "Pinned")]
CASES.remove(("cpu", "Pinned"))  # a blocking copy into new memory has none that is pinned


@pytest.mark.parametrize(("read", "memory"), CASES)
def test_the_twin_of_a_read(read, memory):
    trace = Trace()
    trace.launch("work", 0, 4, kernel=(5, 100))
    for depth, name in enumerate(READS[read]):
        trace.operator(name, 10 + depth, 400 - 2 * depth)
    trace.copy(f"DtoH (Device -> {memory})", 30, 80, copy=(106, 2), bytes=8)
    trace.wait(111, 5)
    trace.launch("more", 900, 4, kernel=(905, 10))
    other = Trace(vendor="amd")
    other.events = twin({"traceEvents": trace.events})["traceEvents"]
    assert wait_rows(other.timeline()) == wait_rows(trace.timeline())
    assert len(sites(other.timeline())) == 1


def test_blocking_copies_of_pinned_batches_are_reported_as_such():
    trace = Trace(vendor="amd")
    trace.launch("work", 0, 4, kernel=(5, 100))
    for depth, name in enumerate(["aten::to", "aten::_to_copy", "aten::copy_"]):
        trace.operator(name, 10 + depth, 400 - 2 * depth)
    trace.copy("DtoD (Device -> Device)", 30, 100, copy=(106, 20), bytes=1 << 20)
    trace.launch("more", 900, 4, kernel=(905, 10))
    (site,) = sites(trace.timeline())
    assert (site.mechanism, site.detail) == ("h2d", "pinned")


def test_copies_within_the_device_are_no_waits():
    trace = Trace(vendor="amd")
    trace.launch("work", 0, 4, kernel=(5, 100))
    call = trace.call("hipMemcpyAsync", 30, 5)
    trace.memcpy("DtoD (Device -> Device)", 106, 20, correlation=call)
    trace.launch("more", 900, 4, kernel=(905, 10))
    assert sites(trace.timeline()) == []


# The calls of the HIP runtime that can hold the host, by its documentation, and the kind of each. What may
# wait depends on memory and arguments, and is told by when the call ended.
HIP = {
    "stream_sync": ["hipStreamSynchronize", "hipStreamSynchronize_spt"],
    "event_sync": ["hipEventSynchronize"],
    "device_sync": ["hipDeviceSynchronize", "hipCtxSynchronize"],
    "poll": ["hipEventQuery", "hipStreamQuery"],
    "copy": [
        "hipMemcpy", "hipMemcpyWithStream", "hipMemcpyDtoH", "hipMemcpyHtoD", "hipMemcpyDtoD", "hipMemcpy2D",
        "hipMemcpy3D", "hipMemcpyParam2D", "hipMemcpyPeer", "hipMemcpyToSymbol", "hipMemcpyFromSymbol",
        "hipMemcpyFromArray", "hipMemcpyToArray", "hipMemcpyAtoH", "hipMemcpyHtoA", "hipDrvMemcpy3D",
        "hipDrvMemcpy2DUnaligned",
    ],
    "memory": [
        "hipMalloc", "hipFree", "hipHostMalloc", "hipHostAlloc", "hipHostFree", "hipFreeHost", "hipFreeArray",
        "hipMallocManaged", "hipMallocPitch", "hipHostRegister", "hipHostUnregister", "hipMemPoolTrimTo",
        "hipMemUnmap", "hipMemMap", "hipMemCreate", "hipMemRelease", "hipMemSetAccess",
    ],
    "asynchronous_copy": [
        "hipMemcpyAsync", "hipMemcpyDtoHAsync", "hipMemcpyHtoDAsync", "hipMemcpyDtoDAsync",
        "hipMemcpy2DAsync", "hipMemcpy3DAsync", "hipMemcpyPeerAsync", "hipMemcpyToSymbolAsync",
    ],
}  # fmt: skip
LAUNCHES = [
    "hipLaunchKernel", "hipExtLaunchKernel", "hipModuleLaunchKernel", "hipExtModuleLaunchKernel",
    "hipGraphLaunch", "hipMemsetAsync", "hipEventRecord", "hipStreamWaitEvent", "hipStreamIsCapturing",
    "hipGetDevicePropertiesR0600", "hipPointerGetAttribute", "hipStreamGetCaptureInfo_v2", "hipEventDestroy",
]  # fmt: skip


def test_every_call_of_hip_is_known_for_what_it_does():
    trace = Trace(vendor="amd")
    trace.launch("work", 0, 4, kernel=(5, 100))
    names = [name for kind in HIP.values() for name in kind] + LAUNCHES
    for number, name in enumerate(names):
        trace.call(name, 200 + number, 0.5)
    timeline = trace.timeline()
    is_classified = classify_call_names(timeline)
    for kind, members in HIP.items():
        flags = getattr(is_classified, kind)
        classified = {name for number, name in enumerate(timeline.names) if flags[number] and name in names}
        also = set(HIP["asynchronous_copy"]) if kind == "copy" else set()
        assert classified == set(members) | also, kind
