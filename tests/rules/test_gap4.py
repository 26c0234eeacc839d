"""Rules of memory: what makes them speak, what they say, and what must leave them silent."""

from __future__ import annotations

import pytest
from rules.profiles import (
    GB,
    MS,
    cost,
    find_hits,
    library,
    memory,
    only,
    profile,
    said,
    site,
    steps,
    user,
)

from gapless.model.profile import MemoryUse


class TestReservedMemorySaws:
    def test_with_the_time_it_takes(self) -> None:
        calls = [
            cost("allocator", 18, site("cudaFree", 20), calls=12, blocked=24 * MS, steps=6),
            cost("allocator", 12, site("cudaMalloc", 21), calls=18, blocked=12 * MS, steps=6),
        ]
        hit = only("GAP401", profile(*calls, memory=memory(6, 60, 58), gpu_memory=80 * GB))
        assert hit.evidence == (
            "reserved memory falls 6 times in 6 steps: 60 GB are returned to the driver and 58 GB "
            "requested again",
            "the GPU idles 5 ms of each 100 ms step, 5.0 %, at 2 places",
            "5 calls per step (cudaFree, cudaMalloc), 6 ms on the CPU",
            "at most 40 GB are reserved, 50 % of the GPU's memory",
        )
        assert "the GPU's memory was not full" in hit.remedy
        assert hit.idle == 30 * MS
        assert hit.site is not None
        assert hit.site.line == user(20)

    def test_with_memory_alone(self) -> None:
        hit = only("GAP401", profile(memory=memory(3, 9, 8)))
        assert "falls 3 times in 6 steps: 9 GB are returned" in said(hit)
        assert (hit.idle, hit.site) == (0, None)

    def test_at_the_limit_the_sizes_are_to_blame(self) -> None:
        hit = only("GAP401", profile(memory=memory(6, 60, 58, peak=78), gpu_memory=80 * GB))
        assert "because the GPU's memory is full" in hit.remedy
        assert "expandable_segments" in hit.remedy

    def test_empty_cache_is_named_where_it_is_seen(self) -> None:
        below = library("torch/cuda/memory.py", "empty_cache")
        emptied = cost("allocator", 18, site("cudaFree", 20, below), calls=6, steps=6)
        hit = only("GAP401", profile(emptied, memory=memory(6, 60, 58)))
        assert hit.remedy.startswith("remove `torch.cuda.empty_cache()` from the loop: cached")

    def test_no_setting_is_advised_that_amd_does_not_have(self) -> None:
        hit = only("GAP401", profile(memory=memory(6, 60, 58), vendor="amd"))
        assert "expandable_segments" not in hit.remedy

    @pytest.mark.parametrize(
        "used",
        [
            MemoryUse(),
            memory(0, 0, 0),
            memory(1, 10, 10),  # between two phases
            memory(6, 60, 1),  # given back for good
            memory(6, 0.01, 0.01),  # a segment of 10 MB
        ],
    )
    def test_what_falls_once_or_for_good_is_left_alone(self, used: MemoryUse) -> None:
        assert not find_hits("GAP401", profile(memory=used))

    def test_two_falls_in_many_steps_are_exceptions(self) -> None:
        assert not find_hits("GAP401", profile(memory=memory(2, 9, 9), marked=steps(*[100] * 100)))

    def test_one_step_does_not_tell(self) -> None:
        assert not find_hits("GAP401", profile(memory=memory(2, 9, 9), marked=steps(100)))
        assert not find_hits("GAP401", profile(memory=memory(2, 9, 9), marked=steps(100, source="span")))

    def test_full_memory_is_reported_as_gap401_only(self) -> None:
        calls = cost("allocator", 60, site("cudaMalloc", 21), calls=18, steps=6)
        both = profile(calls, memory=memory(6, 60, 58))
        assert find_hits("GAP401", both)
        assert not find_hits("GAP402", both)


class TestAllocatorChurn:
    def test_memory_that_grows_in_each_step(self) -> None:
        grows = cost("allocator", 30, site("cudaMalloc", 21), calls=12, blocked=18 * MS, steps=6)
        hit = only("GAP402", profile(grows))
        assert hit.evidence == (
            "the GPU idles 5 ms of each 100 ms step, 5.0 %",
            "2 calls per step (cudaMalloc), 3 ms on the CPU",
        )
        assert hit.remedy.startswith("the cache never fits: set `PYTORCH_CUDA_ALLOC_CONF")

    def test_memory_that_is_given_back(self) -> None:
        calls = [
            cost("allocator", 30, site("cudaMalloc", 21), calls=12, steps=6),
            cost("allocator", 12, site("cudaFree", 21), calls=12, steps=6),
        ]
        hit = only("GAP402", profile(*calls))
        assert hit.idle == 42 * MS
        assert hit.remedy.startswith("memory is returned and requested again")

    def test_pinned_memory_has_a_remedy_of_its_own(self) -> None:
        hit = only("GAP402", profile(cost("allocator", 30, site("cudaHostAlloc", 21), calls=6, steps=6)))
        assert "pin_memory=True" in hit.remedy

    def test_lines_that_take_turns_recur_together(self) -> None:
        turns = [
            cost("allocator", 10, site("cudaMalloc", 20 + n), calls=1, steps=1, start=n * 100 * MS)
            for n in range(6)
        ]
        assert (
            sum(hit.idle for hit in find_hits("GAP402", profile(*turns))) == 50 * MS
        )  # the first step fills the cache

    @pytest.mark.parametrize("count", [1, 2, 6])
    def test_the_first_step_fills_the_cache(self, count: int) -> None:
        first = [cost("allocator", 20, site("cudaMalloc", n), calls=9, steps=1, start=n) for n in range(1, 9)]
        assert not find_hits("GAP402", profile(*first, marked=steps(*[200] * count)))

    def test_two_of_six_steps_may_warm_up(self) -> None:
        assert not find_hits(
            "GAP402", profile(cost("allocator", 30, site("cudaMalloc", 21), calls=4, steps=2))
        )

    @pytest.mark.parametrize("ms", [0, 5])
    def test_what_costs_next_to_nothing_is_left_alone(self, ms: float) -> None:
        cheap = cost("allocator", ms, site("cudaMalloc", 21), calls=12, blocked=18 * MS, steps=6)
        assert not find_hits("GAP402", profile(cheap))


class TestMemoryNearTheLimit:
    def test_reserved_far_above_allocated(self) -> None:
        apart = profile(memory=memory(0, 0, 0, peak=76, allocated=50), gpu_memory=80 * GB)
        assert only("GAP403", apart).evidence == (
            "at most 76 GB are reserved, 95 % of the GPU's memory",
            "tensors use at most 50 GB: 26 GB less",
        )
        assert not find_hits("GAP404", apart)

    def test_amd_gets_no_setting_it_does_not_have(self) -> None:
        apart = profile(memory=memory(0, 0, 0, peak=76, allocated=50), gpu_memory=80 * GB, vendor="amd")
        assert only("GAP403", apart).remedy.startswith("pad variable lengths")

    def test_tensors_fill_the_device(self) -> None:
        full = profile(memory=memory(0, 0, 0, peak=78, allocated=76), gpu_memory=80 * GB)
        assert only("GAP404", full).evidence == ("tensors use at most 76 GB of 80 GB, 95 %",)
        assert not find_hits("GAP403", full)

    def test_a_little_less_than_all(self) -> None:
        full = profile(memory=memory(0, 0, 0, peak=22, allocated=21.7), gpu_memory=24 * GB)
        assert "at most 21.7 GB of 24 GB, 90 %" in said(only("GAP404", full))

    @pytest.mark.parametrize(
        ("used", "device"),
        [
            (memory(0, 0, 0, peak=40, allocated=10), 80),  # much in the cache, and room beside it
            (memory(0, 0, 0, peak=76, allocated=70), 80),  # full, and well used
            (memory(0, 0, 0, peak=76, allocated=50), 0),  # a device of unknown size
            (MemoryUse(), 80),
            (MemoryUse(peak_reserved=76 * GB), 80),
        ],
    )
    def test_room_that_is_left_and_room_that_is_unknown(self, used: MemoryUse, device: int) -> None:
        full = profile(memory=used, gpu_memory=device * GB)
        assert not find_hits("GAP403", full)
        assert not find_hits("GAP404", full)
