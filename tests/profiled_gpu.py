"""The command line on a GPU that is only in the files: ``python profiled_gpu.py profile SCRIPT``.

The profiler is torch's own and records what the host does; device work that would have followed is written
beside it: a kernel for each operator that computes, a copy and a wait for each value that is read.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

import gapless.capture.profiling as profiling
from gapless.commands import main

DEVICE = "NVIDIA Paper Tiger"
COMPUTES = ("aten::addmm", "aten::mm", "aten::sum", "aten::add_")
READS = "aten::_local_scalar_dense"
BUSY = float(os.environ.get("KERNEL_MICROSECONDS", "40"))


class PaperProfiler(torch.profiler.profile):
    """Adds the device work when the file is written."""

    def export_chrome_trace(self, path: str, *args: Any, **kwargs: Any) -> None:
        super().export_chrome_trace(path, *args, **kwargs)
        with gzip.open(path, "rt") as file:
            document = json.load(file)
        document["deviceProperties"] = [{"id": 0, "name": DEVICE, "numSms": 108, "totalGlobalMem": 1 << 34}]
        document["traceEvents"] += _device(document["traceEvents"])
        with gzip.open(path, "wt") as file:
            json.dump(document, file)


def _device(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    operators = [one for one in events if one.get("cat") == "cpu_op" and one["name"] in (*COMPUTES, READS)]
    made: list[dict[str, Any]] = []
    free = 0.0
    for number, one in enumerate(sorted(operators, key=lambda one: one["ts"]), 1):
        begin, length = one["ts"], one["dur"]
        host = {"ph": "X", "pid": one["pid"], "tid": one["tid"], "ts": begin + length * 0.2}
        start = max(free, host["ts"] + 1)
        reads = one["name"] == READS
        free = start + (1 if reads else BUSY)
        name = "cudaMemcpyAsync" if reads else "cudaLaunchKernel"
        told = {"correlation": number, "External id": one["args"]["External id"]}
        made.append(host | {"cat": "cuda_runtime", "name": name, "dur": length * 0.2, "args": told})
        work = {"device": 0, "stream": 7, "context": 1, **told}
        if reads:
            work["bytes"] = 4
            wait = {"ts": begin + length * 0.5, "dur": length * 0.4, "cat": "cuda_runtime"}
            made.append(
                host | wait | {"name": "cudaStreamSynchronize", "args": {"correlation": 10**6 + number}}
            )
        made.append(
            {
                "ph": "X",
                "cat": "gpu_memcpy" if reads else "kernel",
                "name": "Memcpy DtoH (Device -> Pageable)" if reads else f"kernel of {one['name']}",
                "pid": 0,
                "tid": 7,
                "ts": start,
                "dur": free - start,
                "args": work,
            }
        )
    return made


class PaperHistory:
    """Writes a snapshot of no requests."""

    def __init__(self, path: Path, ranked: bool = True) -> None:
        self.path, self.saved, self.out_of_memory = path, False, False

    def start(self) -> PaperHistory:
        return self

    def stop(self, save: bool = True) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
        self.saved = True


def machine(instead: str = "") -> profiling.Machine:
    return profiling.Machine(DEVICE, (torch.profiler.ProfilerActivity.CPU,), PaperProfiler, PaperHistory)


if __name__ == "__main__":
    profiling.machine = machine
    sys.exit(main(sys.argv[1:]))
