"""What a real GPU did, on which nothing was fitted: profiles and snapshots of an NVIDIA H200, torch 2.11.

`benchmarks/gpu/profiles.py` and `memory.py` recorded them: stages of the examples under the profiler, and
first steps of trainings with the allocator's history (without stacks).
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.profile_findings import find_in_profiles
from gapless.memory.report import compare_with_recording
from gapless.memory.simulate import Simulation
from gapless.memory.snapshot import read_bytes
from gapless.trace.read import read

HERE = Path(__file__).parent
STEPS = 4
SYNCS = {
    "segmentation-original": {"GAP110": 1, "GAP112": 3, "GAP114": 1, "GAP125": 1},
    "segmentation-step1_where": {"GAP112": 3, "GAP114": 1},
    "segmentation-step2_sort": {"GAP112": 3},
    "segmentation-step3_ignore_index": {},
}
"""Syncs in each step by rule, as the article counts them and `gapless check` finds them without a GPU."""


@pytest.mark.parametrize("stage", SYNCS)
def test_a_profile_shows_the_syncs_that_the_check_finds(stage: str) -> None:
    profile = build_profile(read(HERE / f"{stage}.json.gz"))
    syncs: Counter[str] = Counter()
    for finding in find_in_profiles([profile]):
        if finding.code.startswith("GAP1"):
            syncs[finding.code] += finding.frequency.total
    assert syncs == {code: STEPS * count for code, count in SYNCS[stage].items()}


@pytest.mark.parametrize("name", ["sizes-0", "sizes-1", "resnet-1"])
def test_every_address_of_the_allocator_is_replayed(name: str) -> None:
    data = gzip.decompress((HERE / f"{name}.pickle.gz").read_bytes())
    (run,) = [run for run in read_bytes(data, name) if len(run)]
    replay = Simulation(run)
    replay.go()
    fidelity = compare_with_recording(run, replay)
    assert fidelity.exact
    assert fidelity.addresses == fidelity.allocations
