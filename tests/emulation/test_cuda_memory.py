"""Memory statistics of the emulated device."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from emulation.fake_device import MIB, FakeDevice, installed


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with installed(FakeDevice()) as fake:
        yield fake


def test_memory_statistics_hang_together(device: FakeDevice) -> None:
    device.holds(9 * MIB)
    device.holds(5 * MIB)
    cuda = torch.cuda
    assert (cuda.memory_allocated(), cuda.max_memory_allocated()) == (5 * MIB, 9 * MIB)
    assert (cuda.memory_reserved(), cuda.max_memory_reserved()) == (10 * MIB, 10 * MIB)
    free, total = cuda.mem_get_info()
    assert total == cuda.get_device_properties().total_memory
    assert total - free == cuda.device_memory_used() > cuda.memory_reserved()
    assert torch.accelerator.get_memory_info() == (free, total)
    assert torch.accelerator.memory_allocated() == 5 * MIB
    assert torch.accelerator.max_memory_reserved(0) == 10 * MIB
    stats = cuda.memory_stats()
    for kind in ("allocated_bytes", "reserved_bytes"):
        current, allocated, freed = (
            stats[f"{kind}.all.{part}"] for part in ("current", "allocated", "freed")
        )
        assert current == allocated - freed
    assert "10 MiB" in cuda.memory_summary() or "10240 KiB" in cuda.memory_summary()
    (segment,) = cuda.memory_snapshot()
    assert segment["total_size"] == sum(block["size"] for block in segment["blocks"]) == 10 * MIB
    assert f"process {os.getpid():>10d} uses" in cuda.list_gpu_processes()


def test_empty_cache_waits_where_something_is_cached(device: FakeDevice) -> None:
    torch.cuda.empty_cache()
    assert device.waited() == []  # CUDA is not in use
    device.holds(9 * MIB)
    torch.cuda.empty_cache()
    assert device.waited() == []  # all that is reserved is in use
    device.holds(3 * MIB)
    torch.cuda.empty_cache()
    assert device.waited() == [("cudaFree", "free", "torch.cuda.empty_cache")]
    assert (torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()) == (4 * MIB, 10 * MIB)
    torch.accelerator.empty_cache()
    assert device.waited() == []
    device.holds(20 * MIB)
    assert torch.cuda.memory_reserved() == 20 * MIB


def test_peaks_are_reset(device: FakeDevice) -> None:
    device.holds(9 * MIB, 1)
    device.holds(MIB, 1)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(1) == MIB
    assert torch.cuda.max_memory_reserved(1) == torch.cuda.memory_reserved(1) == 2 * MIB
    torch.cuda.reset_accumulated_memory_stats(1)
    assert torch.cuda.memory_stats(1)["allocated_bytes.all.freed"] == 0


def test_history_is_accepted_with_a_remark(device: FakeDevice, tmp_path: Any) -> None:
    torch.cuda.memory._record_memory_history(max_entries=10)
    assert device.notes == [
        "torch.cuda.memory._record_memory_history records no allocation history on the emulated device"
    ]
    torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    assert pickle.loads((tmp_path / "snapshot.pickle").read_bytes())["segments"] == []
    torch.cuda.memory._record_memory_history(enabled=None)
    assert len(device.notes) == 1


def test_memory_fraction_is_kept(device: FakeDevice) -> None:
    torch.cuda.set_per_process_memory_fraction(0.5, 1)
    assert torch.cuda.get_per_process_memory_fraction(1) == 0.5
    assert torch.cuda.get_per_process_memory_fraction(0) == 1.0
