"""Memory statistics of the emulated device.

What is known is how many bytes live on each device and the most there have been. The caching allocator
is modelled from these: it reserves in segments of 2 MiB and gives nothing back before ``empty_cache``, so
what it holds is the high-water mark. Numbers of blocks are not known and reported as 0.
"""

from __future__ import annotations

import os
from typing import Any

from gapless.emulation.cuda_api.runtime import CONTEXT_BYTES, Runtime

_SEGMENT = 2 * 1024 * 1024  # c10/core/AllocatorConfig.h: large allocations are rounded up to this
_VALUES = ("current", "peak", "allocated", "freed")
_USED = ("allocated_bytes", "active_bytes", "requested_bytes")
_UNKNOWN = ("allocation", "segment", "active", "inactive_split", "inactive_split_bytes")
_COUNTERS = (
    *("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"),
    "num_oom_rejections",
)
_ADDRESS = 0x7F00_0000_0000
_HISTORY = "torch.cuda.memory._record_memory_history records no allocation history on the emulated device"


class Memory:
    """What ``torch._C`` answers about memory."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._device = runtime.device
        self._reserved: dict[int, int] = {}
        self._peak_reserved: dict[int, int] = {}
        self._peak_at_release: dict[int, int] = {}
        self._historic: dict[int, int] = {}
        self.history = False

    def reserved(self, index: int) -> int:
        """Bytes the allocator holds on device `index`, used or cached."""
        peak = self._device.peak_allocated(index)
        seen = self._device.allocated(index)
        if peak > self._peak_at_release.get(index, 0):  # a peak of before empty_cache is no longer held
            seen = max(seen, peak)
        seen = max(seen, self._device.allocated(index) + self._device.graphs.pools.kept(index))
        held = max(self._reserved.get(index, 0), -(-seen // _SEGMENT) * _SEGMENT)
        self._reserved[index] = held
        self._peak_reserved[index] = max(self._peak_reserved.get(index, 0), held)
        self._historic[index] = max(self._historic.get(index, 0), peak)
        return held

    def free_and_total(self, index: int) -> tuple[int, int]:
        """What ``cudaMemGetInfo`` answers, in bytes."""
        self._device.note_query()
        total = self._device.gpu.total_memory
        return max(0, total - CONTEXT_BYTES - self.reserved(self._runtime.check(index))), total

    def empty_cache(self) -> None:
        """Give cached segments back: the host waits if there are any, because ``cudaFree`` waits.

        Nothing is cached where nothing on the device has ceased to be since the last time; then no memory is
        freed and nobody waits. (A script made small for a trial may free less than a segment, which the
        allocator would keep; at its real size it frees more, so that counts.) The waits of several segments
        count as one: after the first, the device has nothing left to do.
        """
        if not self._runtime.is_initialized():
            return
        freed = 0
        for index in range(self._runtime.device_count()):
            held = self.reserved(index)
            used = self._device.allocated(index) + self._device.graphs.pools.kept(index)
            needed = -(-used // _SEGMENT) * _SEGMENT
            freed += max(held - needed, self._device.take_freed(index))
            self._reserved[index] = needed
            self._peak_at_release[index] = self._device.peak_allocated(index)
        if freed:
            self._device.wait("cudaFree", "free", call="torch.cuda.empty_cache")

    def reset_peak(self, index: int) -> None:
        """Count peaks afresh."""
        index = self._runtime.check(index)
        held = self.reserved(index)
        self._device.reset_peak(index)
        self._peak_at_release.pop(index, None)
        self._peak_reserved[index] = held

    def reset_accumulated(self, index: int) -> None:
        """Count totals afresh."""
        self._historic[self._runtime.check(index)] = 0

    def stats(self, index: int) -> dict[str, Any]:
        """What ``torch._C._cuda_memoryStats`` answers: nested, with the keys of torch's allocator."""
        index = self._runtime.check(index)
        held = self.reserved(index)
        live, peak = self._device.allocated(index), self._device.peak_allocated(index)
        used = self._metric(live, peak, max(self._historic.get(index, 0), live))
        reserved = self._metric(held, self._peak_reserved[index], self._peak_reserved[index])
        unused = self._metric(0, 0, 0)
        nested: dict[str, Any] = {
            **dict.fromkeys(_UNKNOWN, unused),
            **dict.fromkeys(_USED, used),
            "reserved_bytes": reserved,
        }
        nested = {
            name: {pool: dict(values) for pool, values in pools.items()} for name, pools in nested.items()
        }
        for name in ("oversize_allocations", "oversize_segments"):
            nested[name] = dict.fromkeys(_VALUES, 0)
        nested.update(dict.fromkeys(_COUNTERS, 0))
        nested["max_split_size"] = -1
        nested["reserved_bytes_by_private_pools"] = {}
        return nested

    @staticmethod
    def _metric(current: int, peak: int, total: int) -> dict[str, dict[str, int]]:
        """One statistic by pool: which pool a block came from is not known, so all are called large."""
        values = dict(zip(_VALUES, (current, max(peak, current), total, total - current), strict=True))
        return {"all": values, "small_pool": dict.fromkeys(values, 0), "large_pool": values}

    def host_stats(self) -> dict[str, Any]:
        """What ``torch._C._cuda_hostMemoryStats`` answers. Pinned memory is not counted."""
        kinds = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
        stats: dict[str, Any] = {kind: dict.fromkeys(_VALUES, 0) for kind in kinds}
        for kind in ("host_alloc_time", "host_free_time"):
            stats[kind] = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
        return {**stats, "num_host_alloc": 0, "num_host_free": 0}

    def snapshot(self, *_: Any) -> dict[str, Any]:
        """What ``torch._C._cuda_memorySnapshot`` answers: one segment per device that holds anything."""
        devices = range(self._runtime.device_count())
        return {
            "segments": [self._segment(index) for index in devices if self.reserved(index)],
            "device_traces": [[] for _ in devices],
            "external_annotations": [],
            "allocator_settings": {},
        }

    def _segment(self, index: int) -> dict[str, Any]:
        live, held = self._device.allocated(index), self.reserved(index)
        address = _ADDRESS + index * (1 << 40)
        blocks = [(live, "active_allocated", address), (held - live, "inactive", address + live)]
        return {
            "device": index,
            "address": address,
            "total_size": held,
            "allocated_size": live,
            "active_size": live,
            "requested_size": live,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [
                {"address": at, "size": size, "requested_size": size, "state": state, "frames": []}
                for size, state, at in blocks
                if size
            ],
        }

    def record_history(self, enabled: Any = "all", *_: Any, **__: Any) -> None:
        """Accept the request and say that nothing comes of it."""
        self.history = bool(enabled)
        if self.history:
            self._device.note(_HISTORY)

    def used_on_device(self, index: int) -> int:
        """Bytes in use on the whole device, this process' context included."""
        free, total = self.free_and_total(index)
        return total - free

    def processes(self, index: int) -> str:
        """The text of ``torch.cuda.list_gpu_processes``: this process alone."""
        megabytes = self.used_on_device(index) / (1024 * 1024)
        return f"GPU:{index}\nprocess {os.getpid():>10d} uses {megabytes:>12.3f} MB GPU memory"
