"""Real snapshots: what the driver was asked for is met to the byte, where there are some."""

from __future__ import annotations

import pytest

from gapless.memory.report import fidelity
from gapless.memory.simulate import Simulation, simulate
from gapless.memory.snapshot import read
from gapless.model.memory import check

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
    found = (outcome.mallocs, outcome.frees, outcome.retries, outcome.peak_reserved, outcome.final_reserved)
    assert found == KNOWN[name]
    told = fidelity(run, replay)
    assert (told.exact, told.misses) == (True, ())
    assert told.addresses == told.allocations > 0


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
