"""Snapshots of the caching allocator from a real GPU, and their replay beside what was recorded.

    python benchmarks/gpu/memory.py                 # on a machine with a GPU: memory.md, and the snapshots
    python benchmarks/gpu/memory.py --self-check    # anywhere: a made-up run in their place

Recorded are the first steps of a training, so that the history reaches back to an empty allocator: ResNet-18
on images of one size, and the segmentation network on images of changing sizes, under several settings.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import _experiment
import torch
from _experiment import Results
from torch import nn

SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8")
WORKLOADS = ("resnet", "sizes")
STEPS = 12


def make_workload(workload: str) -> tuple[nn.Module, list[tuple[int, ...]]]:
    """Return a network, and the shape of its input in each step."""
    if workload == "resnet":
        sys.path.insert(0, str(_experiment.HERE.parents[1] / "examples"))
        from models.resnet import resnet18

        return resnet18(), [(64, 3, 224, 224)] * STEPS
    import masked_loss

    network = masked_loss.example("original").train.__globals__["Network"]
    return network(10), [(8, 3, 64 + 32 * (step * 5 % 7), 256) for step in range(STEPS)]


def record(workload: str, settings: str, target: Path) -> None:
    """Run the first steps of a workload under the allocator's `settings` and dump its history."""
    if settings:
        torch.cuda.memory._set_allocator_settings(settings)
    torch.manual_seed(0)
    torch.cuda.memory._record_memory_history(max_entries=1_000_000)
    network, shapes = make_workload(workload)
    model = network.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for shape in shapes:
        optimizer.zero_grad()
        model(torch.randn(shape, device="cuda")).mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(str(target))


def part(name: str, emulated: bool) -> Any:
    """Record a workload under one of the settings (``resnet 1``); return the name of the snapshot."""
    workload, number = name.split(" ")
    with _experiment.kept("snapshots", emulated) as folder:
        target = folder / f"{workload}-{number}.pickle"
        if emulated:
            make_up_snapshot(workload, target)
            return _experiment.load_benchmark("memory").compare_snapshots(folder)[0]
        record(workload, SETTINGS[int(number)], target)
    return target.name


def make_up_snapshot(workload: str, target: Path) -> None:
    """Write a made-up snapshot in the viewer's format, and check that the workload runs."""
    import pickle

    from gapless.memory.export import ExportingSimulation

    network, shapes = make_workload(workload)
    for shape in shapes[:2]:
        network.to("meta")(torch.empty(shape, device="meta")).mean().backward()
    written = ExportingSimulation(_experiment.load_benchmark("memory").training(2_000))
    written.go()
    target.write_bytes(pickle.dumps(written.snapshot()))


def sheet(results: Results) -> tuple[str, list[str]]:
    if _experiment.SELF_CHECK:
        return "".join(results.values()), []
    table, exact = _experiment.load_benchmark("memory").compare_snapshots(_experiment.KEPT / "snapshots")
    return table, [] if exact else ["a replay differs from what was recorded"]


def script() -> _experiment.Script:
    settings = ", ".join(text or "default" for text in SETTINGS)
    return _experiment.Script(
        __doc__, __file__, "The allocator on a real GPU, replayed",
        f"{STEPS} first steps, recorded from an empty allocator, each setting in a process of its own; "
        f"settings in order: {settings}; predicted / recorded",
        part, sheet, [f"{workload} {number}" for number in range(len(SETTINGS)) for workload in WORKLOADS],
        seconds=60,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())
