"""Snapshots as the versions of torch write them, those without a history, and runs that were saved."""

from __future__ import annotations

import json
import pickle

import msgspec
import pytest

from gapless.errors import UnreadableInput
from gapless.files.kinds import kind_of
from gapless.memory.devices import summarize_others
from gapless.memory.report import ReportOptions, compare_with_recording, report
from gapless.memory.simulate import Simulation
from gapless.memory.sizes import MIB
from gapless.memory.snapshot import read, read_value
from gapless.memory.trials import TrialConditions
from gapless.model.memory import ALLOC, MemoryRun, Place, StartBlock, StartSegment, check, decode, encode

BASE = 0x7F12_0000_0000
CALL = [{"name": "forward", "filename": "/home/me/model.py", "line": 12}]


def entry(action: str, addr: int = BASE, size: int = 20 * MIB, **more) -> dict:
    return {"action": action, "addr": addr, "size": size, "stream": 0, **more}


VERSIONS = ("2.0", "2.1", "2.3", "2.6", "2.13")


def dressed(version: str) -> dict:
    """One run as the versions of torch since then write it: what each added is left out of those before."""
    new = VERSIONS.index(version)
    place = {"address": BASE} if new >= 2 else {}
    used = {"size": 8 * MIB, "state": "active_allocated", **place}
    used |= {"requested_size": 8 * MIB - 100, "frames": CALL}
    if new == 0:
        frames = {"frames": used.pop("frames")}
        used["history"] = [{"addr": BASE, "real_size": used.pop("requested_size"), **frames}]
    free = {"size": 12 * MIB, "state": "inactive", **({"address": BASE + 8 * MIB} if new >= 2 else {})}
    home = {"device": 0, "address": BASE, "total_size": 20 * MIB, "stream": 0, "segment_type": "large"}
    home |= {"allocated_size": 8 * MIB, "active_size": 8 * MIB, "blocks": [used, free]}
    trace = [entry("segment_alloc", BASE, frames=CALL), entry("alloc", BASE, 8 * MIB - 100, frames=CALL)]
    value = {"segments": [home], "device_traces": [trace, []]}
    if new >= 1:
        home |= {"requested_size": 8 * MIB - 100, "is_expandable": False, "frames": CALL}
    if new >= 2:
        home["segment_pool_id"] = (0, 0)
        for at, trace_entry in enumerate(trace):
            trace_entry["time_us"] = 1_700_000_000_000_000 + at
        value["allocator_settings"] = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1}
    if new >= 3:
        value["external_annotations"] = []
        for trace_entry in trace:
            trace_entry["compile_context"] = "N/A"
        trace.append(entry("snapshot", 0, 8 * MIB, frames=[], time_us=1_700_000_000_000_009))
    if new >= 4:
        value["allocator_settings"]["PYTORCH_ALLOC_CONF"] = ""
        for trace_entry in trace:
            trace_entry |= {"user_metadata": "", "pool_id": (0, 0)}
    return value


@pytest.mark.parametrize("version", VERSIONS)
def test_the_snapshots_of_many_versions(version):
    (read_run,) = read_value(dressed(version), "it")
    assert (read_run.action, read_run.size, read_run.start) == ((ALLOC,), (8 * MIB - 100,), ())
    assert read_run.line(read_run.place[0]).line == 12
    assert bool(read_run.time) == (VERSIONS.index(version) >= 2)
    replay = Simulation(read_run).go()
    assert compare_with_recording(read_run, replay).exact
    assert (replay.placed, replay.outcome().peak_reserved) == (1, 20 * MIB)


def test_a_snapshot_without_history_tells_how_memory_lies():
    value = dressed("2.13") | {"device_traces": [[]]}
    (read_run,) = read_value(value, "it")
    memory_report = report(read_run, ReportOptions(search=True))
    assert (memory_report.baseline.peak_reserved, memory_report.baseline.peak_allocated) == (
        20 * MIB,
        8 * MIB,
    )
    assert [(owner.line.line, owner.bytes) for owner in memory_report.peak.owners] == [(12, 8 * MIB - 100)]
    assert (memory_report.trials, memory_report.advice, memory_report.replayed, memory_report.fidelity) == (
        (),
        "",
        False,
        None,
    )
    assert memory_report.notes[-1].startswith("the history of requests was not recorded")


@pytest.mark.parametrize("context", ["all", "alloc"])
def test_who_lets_memory_go_is_not_who_asked_for_it(context):
    """Frames of what is given back are those of the one or the other, by what was recorded."""
    going = [{**CALL[0], "line": 99}]
    other = going if context == "all" else CALL
    trace = [
        entry("alloc", BASE + 8 * MIB, 4 * MIB, frames=CALL),
        entry("free_requested", BASE, 8 * MIB, frames=other),
        entry("free_completed", BASE, 8 * MIB, frames=other),
        entry("free_requested", BASE + 8 * MIB, 4 * MIB, frames=other),
        entry("free_completed", BASE + 8 * MIB, 4 * MIB, frames=other),
    ]
    home = {"device": 0, "address": BASE, "total_size": 20 * MIB, "stream": 0, "segment_type": "large"}
    home["blocks"] = [{"size": 20 * MIB, "requested_size": 0, "state": "inactive", "frames": []}]
    (read_run,) = read_value({"segments": [home], "device_traces": [trace]}, "it")
    owners = {owner.bytes: owner for owner in report(read_run).peak.owners}
    if context == "alloc":
        assert {owner.line.line for owner in owners.values()} == {12}
    else:
        assert (owners[8 * MIB].line, owners[8 * MIB].before) == (None, True)
        assert owners[4 * MIB].line.line == 12


GOOD = MemoryRun(
    start=(StartSegment(address=BASE, size=20 * MIB, blocks=(StartBlock(20 * MIB, ident=0, requested=9),)),)
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"places": (Place(lines=(3,)),)}, "a place whose line does not exist"),
        (
            {"action": (ALLOC,), "ident": (5,), "size": (9,), "stream": (0,), "place": (-1,), "pool": (2,)},
            "a pool",
        ),
        ({"start": GOOD.start * 2}, "an allocation in two places at once"),
        ({"start": (StartSegment(address=0, size=9),)}, "size differs from its blocks' total"),
        (
            {"start": (StartSegment(address=0, size=-9, blocks=(StartBlock(-9),)),)},
            "size differs from its blocks' total",
        ),
        ({"start": (StartSegment(address=-1, size=9, blocks=(StartBlock(9),)),)}, "at an impossible address"),
        (
            {"start": (StartSegment(address=0, size=9, pool=4, blocks=(StartBlock(9),)),)},
            "at an impossible address",
        ),
        ({"reserved": (1,)}, "1 entries in reserved for 0 events"),
    ],
)
def test_what_a_saved_run_must_be(change, said):
    assert check(GOOD) == ""
    damaged = msgspec.structs.replace(GOOD, **change)
    assert said in check(damaged)
    with pytest.raises(UnreadableInput, match=r"run\.json is a damaged memory run: "):
        decode(encode([damaged]), "run.json")


def listed(version: str, *devices: int) -> list:
    """What ``torch.cuda.memory_snapshot()`` gives, and torch before 2.0 as a whole snapshot."""
    (home,) = dressed(version)["segments"]
    segments = [{**home, "device": device, "address": BASE + device * 64 * MIB} for device in devices]
    for segment in segments:
        segment["blocks"] = [
            {key: value for key, value in block.items() if key != "address"} for block in segment["blocks"]
        ]
    return segments


@pytest.mark.parametrize("how", ["list", "dict", "JSON", "pickle", "no stream"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_list_of_segments_tells_how_memory_lies(version, how, tmp_path):
    value = listed(version, 0)
    if how == "no stream":
        del value[0]["stream"]
    path = tmp_path / "segments.json"
    if how == "pickle":
        path.write_bytes(pickle.dumps(value))
    else:
        path.write_text(json.dumps({"segments": value} if how == "dict" else value))
    assert kind_of(str(path)) == "snapshot"
    (read_run,) = read(str(path))
    memory_report = report(read_run, ReportOptions(search=True))
    assert (memory_report.baseline.peak_reserved, memory_report.baseline.peak_allocated) == (
        20 * MIB,
        8 * MIB,
    )
    assert [(owner.line.line, owner.bytes) for owner in memory_report.peak.owners] == [(12, 8 * MIB - 100)]
    assert "when the snapshot was taken" in memory_report.sentence


def test_segments_of_several_devices_are_a_run_each():
    runs = read_value(listed("2.6", 0, 1), "it")
    assert [(run.device, report(run).baseline.peak_reserved) for run in runs] == [
        (0, 20 * MIB),
        (1, 20 * MIB),
    ]


@pytest.mark.parametrize("value", [[3], [{}], [{"total_size": 3}], []])
def test_another_list_is_no_snapshot(value):
    with pytest.raises(UnreadableInput, match="is not a memory snapshot"):
        read_value(value, "it")


def test_an_unused_device_is_not_reported():
    """torch keeps a trace for each device it sees, and writes into each that a snapshot was taken."""
    value = dressed("2.13")
    value["segments"][0]["device"] = 1
    trace = value["device_traces"][0]
    value["device_traces"] = [[trace[-1]], trace]
    (run,) = read_value(value, "it")
    assert run.device == 1
    other = MemoryRun(origin="snapshot", device=0)
    assert summarize_others((run, other), run, TrialConditions()) == ()
    assert [device.device for device in summarize_others((run, other), other, TrialConditions())] == [1]
