"""Real snapshots: what the driver was asked for is met to the byte, where there are some."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

from gapless.memory.report import compare_with_recording, report
from gapless.memory.simulate import Simulation, simulate
from gapless.memory.snapshot import read
from gapless.model.memory import ALLOC, check

KNOWN = {
    "2.7b-forward-frees.pickle": (178, 742, 0, 51_849_986_048, 34_898_706_432),
    "forward-ctx256-frees.pickle": (390, 884, 0, 63_350_767_616, 22_833_790_976),
    "forward-fp32.pickle": (0, 0, 0, 610_271_232, 610_271_232),
    "forward-mixed-frees.pickle": (598, 459, 0, 28_848_422_912, 28_848_422_912),
    "ftcourse.pickle": (152, 0, 0, 6_471_811_072, 6_471_811_072),
    "fullstep-ctx128-frees.pickle": (782, 430, 0, 61_111_009_280, 61_111_009_280),
    "select_n-thrashing.pickle": (584, 579, 39, 22_519_218_176, 18_566_086_656),
    "tiny.pickle": (9, 0, 0, 3_781_165_056, 3_781_165_056),
}
"""cudaMalloc, cudaFree, retries, bytes reserved at the peak and at the end: counted in the file."""


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_real_run_replayed(snapshot, name):
    (run,) = read(str(snapshot(name)))
    assert check(run) == ""
    replay = Simulation(run).go()
    outcome = replay.outcome()
    counts = (outcome.mallocs, outcome.frees, outcome.retries, outcome.peak_reserved, outcome.final_reserved)
    assert counts == KNOWN[name]
    comparison = compare_with_recording(run, replay)
    assert (comparison.exact, comparison.misses) == (True, ())
    assert comparison.addresses == comparison.allocations > 0


@pytest.mark.parametrize(
    ("settings", "retries"),
    [
        ("garbage_collection_threshold:0.8,per_process_memory_fraction:0.9999", 0),
        ("expandable_segments:True", 13),
        ("max_split_size_mb:128", 25),
        ("max_split_size_mb:512", 48),
    ],
)
def test_other_settings_on_a_thrashing_run(snapshot, settings, retries):
    (run,) = read(str(snapshot("select_n-thrashing.pickle")))
    assert simulate(run, settings).retries == retries


def alive(value: dict, allocations: int) -> list[tuple[int, list]]:
    """Bytes and frames of what is in use after so many requests: undone from the end, entry by entry."""
    (trace,) = [trace for trace in value["device_traces"] if trace]
    requests, frames_of = {}, {}
    for at, entry in enumerate(trace):
        if entry["action"] == "alloc":
            requests[entry["addr"]] = entry["frames"]
        elif entry["action"] == "free_requested":
            frames_of[at] = requests.pop(entry["addr"], [])
    live = {}
    for segment in value["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                frames = requests.get(address) or block.get("frames", [])
                live[address] = block.get("requested_size", block["size"]), frames
            address += block["size"]
    left = sum(entry["action"] == "alloc" for entry in trace)
    for at in reversed(range(len(trace))):
        entry = trace[at]
        if entry["action"] == "free_requested":
            live[entry["addr"]] = entry["size"], frames_of[at]
        elif entry["action"] == "alloc":
            if left == allocations:
                break
            left -= 1
            del live[entry["addr"]]
    return list(live.values())


def own_line(frames: list) -> tuple[str, int] | None:
    """The innermost line of Python outside of what is installed, and of what a compiler wrote."""
    for frame in frames:
        file = frame["filename"]
        installed = "-packages/" in file or "/lib/python3" in file or file.startswith("<")
        installed |= "torchinductor" in file
        if frame["line"] > 0 and file.endswith(".py") and not installed:
            return file, frame["line"]
    return None


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_who_owns_the_peak_by_another_reckoning(snapshot, name):
    path = snapshot(name)
    (run,) = read(str(path))
    peak = report(run).peak
    held = alive(pickle.loads(path.read_bytes()), run.action[: peak.event + 1].count(ALLOC))
    reckoned = Counter()
    for size, frames in held:
        line = own_line(frames)
        if line is not None:
            reckoned[line] += size
    counts = Counter()
    for owner in peak.owners:
        if owner.line is not None and owner.line.is_user:
            counts[owner.line.file, owner.line.line] += owner.bytes
    assert counts == reckoned
    assert sum(peak.kinds.values()) == sum(size for size, _ in held)
