"""Snapshots of the caching allocator from a real GPU, and their replay beside what was recorded.

    python benchmarks/gpu/memory.py                 # on a machine with a GPU: memory.md, and the snapshots
    python benchmarks/gpu/memory.py --self-check    # anywhere: a made-up run in their place

Recorded are the first steps of a training, so that the history reaches back to an empty allocator: ResNet-18
on images of one size, and the segmentation network on images of changing sizes, under several settings.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import _experiment
import torch
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


def record(workload: str, target: Path) -> None:
    """Run the first steps of a workload and dump the allocator's history."""
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


def record_all(folder: Path) -> None:
    """Record every workload under every setting, each in a process."""
    for workload in WORKLOADS:
        for number, settings in enumerate(SETTINGS):
            target = folder / f"{workload}-{number}.pickle"
            print(f"recording {workload} with {settings or 'default settings'}", file=sys.stderr)
            environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings}
            command = [sys.executable, __file__, "--record", workload, "--into", str(target)]
            if error := _experiment.run(command, 60, env=environment):
                print(f"{target.stem}: {error}", file=sys.stderr)


def make_up_snapshot(folder: Path) -> None:
    """Write a made-up snapshot in the viewer's format, and check that the workloads run."""
    import pickle

    from gapless.memory.export import ExportingSimulation

    for workload in WORKLOADS:
        network, shapes = make_workload(workload)
        for shape in shapes[:2]:
            network.to("meta")(torch.empty(shape, device="meta")).mean().backward()
    written = ExportingSimulation(_experiment.load_benchmark("memory").training(2_000))
    written.go()
    (folder / "made-up.pickle").write_bytes(pickle.dumps(written.snapshot()))


def main() -> int:
    options_of = _experiment.parser(__doc__)
    options_of.add_argument("--record", choices=WORKLOADS, help="record this workload only")
    options_of.add_argument("--into", type=Path, help="… into this file")
    options = options_of.parse_args()
    if options.record:
        record(options.record, options.into)
        return 0
    if not options.self_check and not _experiment.REAL:
        return _experiment.no_gpu()
    with _experiment.kept("snapshots", options.self_check) as folder:
        (make_up_snapshot if options.self_check else record_all)(folder)
        table, exact = _experiment.load_benchmark("memory").compare_snapshots(folder)
    method = (
        f"{STEPS} first steps, recorded from an empty allocator, each setting in a process of its own; "
        f"settings in order: {', '.join(settings or 'default' for settings in SETTINGS)}; predicted / "
        "recorded"
    )
    title = "The allocator on a real GPU, replayed"
    print(_experiment.keep("memory", title, method, table, options.self_check))
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
