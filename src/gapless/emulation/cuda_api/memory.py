"""Memory statistics of the emulated device.

Known are the bytes allocated on each device and their peak. The caching allocator is modelled from these: it
reserves in segments of 2 MiB and frees nothing before ``empty_cache``, so it holds the high-water mark.
Numbers of blocks are unknown and reported as 0.
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
"""Address of the first device's segment in snapshots, in the range real ones have."""
_HISTORY_NOTE = (
    "torch.cuda.memory._record_memory_history records no allocation history on the emulated device"
)


class CudaMemory:
    """Answers the memory functions of ``torch._C``."""

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
        size = self._device.allocated(index)
        if peak > self._peak_at_release.get(index, 0):  # a peak from before empty_cache is no longer held
            size = max(size, peak)
        size = max(size, self._device.allocated(index) + self._device.graphs.pools.kept(index))
        held = max(self._reserved.get(index, 0), -(-size // _SEGMENT) * _SEGMENT)
        self._reserved[index] = held
        self._peak_reserved[index] = max(self._peak_reserved.get(index, 0), held)
        self._historic[index] = max(self._historic.get(index, 0), peak)
        return held

    def free_and_total(self, index: int) -> tuple[int, int]:
        """Free and total bytes, as ``cudaMemGetInfo`` returns them."""
        self._device.note_query()
        total = self._device.gpu.total_memory
        return max(0, total - CONTEXT_BYTES - self.reserved(self._runtime.check(index))), total

    def empty_cache(self) -> None:
        """Free cached segments; count a wait of the host if there are any, because ``cudaFree`` waits.

        Nothing is cached if no tensor was freed since the last call. (Even less than a segment counts: a
        script scaled down for a trial frees more at its real size.) Several segments count as one wait: after
        the first, the device is idle.
        """
        if not self._runtime.is_initialized():
            return
        freed = 0
        for index in range(self._runtime.device_count()):
            held = self.reserved(index)
            used = self._device.allocated(index) + self._device.graphs.pools.kept(index)
            needed = -(-used // _SEGMENT) * _SEGMENT
            freed += max(held - needed, self._device.take_freed_bytes(index))
            self._reserved[index] = needed
            self._peak_at_release[index] = self._device.peak_allocated(index)
        if freed:
            self._device.wait("cudaFree", "free", call="torch.cuda.empty_cache")

    def reset_peak(self, index: int) -> None:
        """Reset peak statistics."""
        index = self._runtime.check(index)
        held = self.reserved(index)
        self._device.reset_peak(index)
        self._peak_at_release.pop(index, None)
        self._peak_reserved[index] = held

    def reset_accumulated(self, index: int) -> None:
        """Reset accumulated statistics."""
        self._historic[self._runtime.check(index)] = 0

    def stats(self, index: int) -> dict[str, Any]:
        """The nested statistics of ``torch._C._cuda_memoryStats``."""
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
        """One statistic by pool; pools of blocks are unknown, so all count as large."""
        values = dict(zip(_VALUES, (current, max(peak, current), total, total - current), strict=True))
        return {"all": values, "small_pool": dict.fromkeys(values, 0), "large_pool": values}

    def host_stats(self) -> dict[str, Any]:
        """The statistics of ``torch._C._cuda_hostMemoryStats``, all 0: pinned memory is not counted."""
        kinds = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
        stats: dict[str, Any] = {kind: dict.fromkeys(_VALUES, 0) for kind in kinds}
        for kind in ("host_alloc_time", "host_free_time"):
            stats[kind] = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
        return {**stats, "num_host_alloc": 0, "num_host_free": 0}

    def snapshot(self, *_: Any) -> dict[str, Any]:
        """The snapshot of ``torch._C._cuda_memorySnapshot``: one segment per device with memory."""
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
        """Accept the request and note that no history is recorded."""
        self.history = bool(enabled)
        if self.history:
            self._device.note(_HISTORY_NOTE)

    def used_on_device(self, index: int) -> int:
        """Bytes in use on the whole device, this process' context included."""
        free, total = self.free_and_total(index)
        return total - free

    def processes(self, index: int) -> str:
        """The text of ``torch.cuda.list_gpu_processes``: this process alone."""
        megabytes = self.used_on_device(index) / (1024 * 1024)
        return f"GPU:{index}\nprocess {os.getpid():>10d} uses {megabytes:>12.3f} MB GPU memory"
