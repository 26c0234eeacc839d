"""The command line with a profiler whose GPU is simulated: ``python fake_profiler.py profile SCRIPT``.

torch's profiler records the host; the GPU work that would have followed is added to the file: a kernel for
each operator that computes, a copy and a wait for each value that is read.
"""

from __future__ import annotations

import bisect
import gzip
import itertools
import json
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
BUSY = 40.0
"""Microseconds of a kernel."""


class PaperProfiler(torch.profiler.profile):
    """Adds the device work when the file is written, and the time for which the CPU would have waited."""

    def export_chrome_trace(self, path: str, *args: Any, **kwargs: Any) -> None:
        super().export_chrome_trace(path, *args, **kwargs)
        with gzip.open(path, "rt") as file:
            document = json.load(file)
        document["deviceProperties"] = [{"id": 0, "name": DEVICE, "numSms": 108, "totalGlobalMem": 1 << 34}]
        gpu = PaperGpu()
        device_events = gpu.work(document["traceEvents"])
        for event in document["traceEvents"]:
            if "ts" in event:
                event["ts"], end = gpu.later(event["ts"]), gpu.later(event["ts"] + event.get("dur", 0))
                if event.get("cat") == "Trace":  # the profiler's own mark: it stops when the GPU is done
                    end = max(end, gpu.done)
                if "dur" in event:
                    event["dur"] = end - event["ts"]
        document["traceEvents"] += device_events
        with gzip.open(path, "wt") as file:
            json.dump(document, file)


class PaperGpu:
    """One stream of kernels of one length; a read returns after its copy, however fast the CPU was."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        """When the CPU began to wait, as it was recorded."""
        self.delays = [0.0]
        """By how much what came after so many waits is later than it was recorded."""
        self.done = 0.0

    def later(self, ts: float) -> float:
        """When that which was recorded at `ts` took place, all waits counted."""
        return ts + self.delays[bisect.bisect_left(self.waits, ts)]

    def work(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Calls, kernels and copies of the operators among `events`, in the time of `later`."""
        operators = [
            event for event in events if event.get("cat") == "cpu_op" and event["name"] in (*COMPUTES, READS)
        ]
        device_events: list[dict[str, Any]] = []
        calls = itertools.count(1)
        for operator in sorted(operators, key=lambda operator: operator["ts"]):
            begin, length = operator["ts"], operator["dur"]
            call = {"ph": "X", "pid": operator["pid"], "tid": operator["tid"], "cat": "cuda_runtime"}
            launch = {"ts": self.later(begin + length * 0.2), "dur": length * 0.2}
            reads = operator["name"] == READS
            start = max(self.done, launch["ts"] + 1)
            self.done = start + (1 if reads else BUSY)
            arguments = {"correlation": next(calls), "External id": operator["args"]["External id"]}
            name = "cudaMemcpyAsync" if reads else "cudaLaunchKernel"
            device_events.append(call | launch | {"name": name, "args": arguments})
            if reads:
                wait = {"name": "cudaStreamSynchronize", "args": {"correlation": next(calls)}}
                device_events.append(call | self.until(begin + length * 0.5, length * 0.4) | wait)
            work = {"device": 0, "stream": 7, "context": 1, **arguments, **({"bytes": 4} if reads else {})}
            cat, name = (
                ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)")
                if reads
                else ("kernel", f"kernel of {operator['name']}")
            )
            device_events.append(
                {
                    "ph": "X",
                    "cat": cat,
                    "name": name,
                    "pid": 0,
                    "tid": 7,
                    "ts": start,
                    "dur": self.done - start,
                }
                | {"dur": self.done - start, "args": work}
            )
        return device_events

    def until(self, begin: float, length: float) -> dict[str, float]:
        """A wait that was recorded at `begin`, and that ends no sooner than the GPU is done."""
        start = self.later(begin)
        end = max(start + length, self.done + 1)
        self.waits.append(begin)
        self.delays.append(self.delays[-1] + end - start - length)
        return {"ts": start, "dur": end - start}


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


def machine(instead: str = "") -> profiling.ProfiledDevice:
    return profiling.ProfiledDevice(
        DEVICE, (torch.profiler.ProfilerActivity.CPU,), PaperProfiler, PaperHistory
    )


if __name__ == "__main__":
    profiling.machine = machine
    sys.exit(main(sys.argv[1:]))
