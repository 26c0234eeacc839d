"""What a training loop pays for its metrics: host time, waits, memory and collectives, library by library."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import _sheet
import torch
import torchmetrics
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MulticlassPrecision,
    MulticlassRecall,
)

import gapless
import gapless.metrics as native

try:
    import torcheval.metrics as torcheval
    from torcheval.metrics.toolkit import sync_and_compute_collection
except ImportError:
    torcheval = None

NAMES = ("MulticlassAccuracy", "MulticlassPrecision", "MulticlassRecall", "MulticlassF1Score")
THEIRS = (MulticlassAccuracy, MulticlassPrecision, MulticlassRecall, MulticlassF1Score)
SIZES = [(10, 128), (10, 4096), (1000, 128), (1000, 4096)]
Update = Callable[[Tensor, Tensor, Tensor], Any]


class Contender(NamedTuple):
    """A mean loss and macro accuracy, precision, recall and F1, from one library."""

    update: Update
    compute: Callable[[], Any]
    forward: Update | None = None


def ours(classes: int, device: str) -> Contender:
    loss = native.MeanMetric().to(device)
    scores = native.MetricCollection([getattr(native, name)(classes) for name in NAMES]).to(device)
    return Contender(
        lambda value, preds, target: (loss.update(value), scores.update(preds, target)),
        lambda: (loss.compute(), scores.compute()),
        lambda value, preds, target: (loss(value), scores(preds, target)),
    )


def in_one_collection(classes: int, device: str) -> Contender:
    several = {name: getattr(native, name)(classes) for name in NAMES}
    scores = native.MetricCollection({"loss": native.MeanMetric(), **several}).to(device)
    return Contender(
        lambda value, preds, target: scores.update(value=value, preds=preds, target=target),
        scores.compute,
        lambda value, preds, target: scores(value=value, preds=preds, target=target),
    )


def theirs(classes: int, device: str) -> Contender:
    loss = torchmetrics.MeanMetric().to(device)
    several = [metric(classes).to(device) for metric in THEIRS]
    return Contender(
        lambda value, preds, target: (
            loss.update(value),
            [metric.update(preds, target) for metric in several],
        ),
        lambda: (loss.compute(), [metric.compute() for metric in several]),
        lambda value, preds, target: (loss(value), [metric(preds, target) for metric in several]),
    )


def their_collection(classes: int, device: str, best: bool) -> Contender:
    loss = torchmetrics.MeanMetric(**({"nan_strategy": "disable"} if best else {})).to(device)
    options = {"validate_args": False} if best else {}
    groups: Any = [list(NAMES)] if best else True
    scores = torchmetrics.MetricCollection(
        [metric(classes, **options) for metric in THEIRS], compute_groups=groups
    ).to(device)
    return Contender(
        lambda value, preds, target: (loss.update(value), scores.update(preds, target)),
        lambda: (loss.compute(), scores.compute()),
        lambda value, preds, target: (loss(value), scores(preds, target)),
    )


def with_torcheval(classes: int, device: str) -> Contender:
    loss = torcheval.Mean(device=torch.device(device))
    several = [
        getattr(torcheval, name)(num_classes=classes, average="macro", device=torch.device(device))
        for name in NAMES
    ]
    by_name = dict(zip(("loss", *NAMES), (loss, *several), strict=True))
    return Contender(
        lambda value, preds, target: (
            loss.update(value),
            [metric.update(preds, target) for metric in several],
        ),
        lambda: sync_and_compute_collection(by_name),
    )


CONTENDERS: dict[str, Callable[[int, str], Contender]] = {
    "gapless": ours,
    "gapless, the loss in the collection": in_one_collection,
    "TorchMetrics, five metrics": theirs,
    "TorchMetrics, `MetricCollection`": lambda c, d: their_collection(c, d, False),
    "TorchMetrics, best options": lambda c, d: their_collection(c, d, True),
    **({"torcheval, five metrics": with_torcheval} if torcheval else {}),
}


def batch(classes: int, size: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    preds = torch.randn(size, classes, generator=random)
    target = torch.randint(0, classes, (size,), generator=random)
    return torch.tensor(0.5).to(device), preds.to(device), target.to(device)


def in_turn(calls: dict[str, Callable[[], Any]], rounds: int, seconds: float = 0.02) -> dict[str, float]:
    """Return the microseconds per call in the best round; all calls take turns."""
    repeats = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        began = time.perf_counter()
        call()
        repeats[name] = max(3, int(seconds / (time.perf_counter() - began)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - began) / repeats[name] * 1e6)
    return {name: min(several) for name, several in times.items()}


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return the bytes a call holds at once: torch's peak plus that of Python and NumPy."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = torchs = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        torchs = max(torchs, now)
    tracemalloc.start()
    call()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    call()
    pythons = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return torchs + pythons


def waits(make: Callable[[int, str], Contender], classes: int) -> int:
    """Return the waits of the third update on the emulated device."""
    with gapless.emulate() as emulated:
        contender, data = make(classes, "cuda"), batch(classes, 128, "cuda")
        for _ in range(2):
            contender.update(*data)
        before = emulated.waits
        contender.update(*data)
        return int(emulated.waits - before)


def classification_rows(size: tuple[int, int], rounds: int) -> list[list[object]]:
    classes, rows = size
    data = batch(classes, rows)
    contenders = {name: make(classes, "cpu") for name, make in CONTENDERS.items()}
    update = in_turn(
        {name: lambda contender=contender: contender.update(*data) for name, contender in contenders.items()},
        rounds,
    )
    with_forward = {name: contender.forward for name, contender in contenders.items() if contender.forward}
    forward = in_turn({n: lambda call=call: call(*data) for n, call in with_forward.items()}, rounds)
    floor = in_turn({"argmax": lambda: data[1].argmax(1)}, rounds)["argmax"]
    table: list[list[object]] = []
    for name, contender in contenders.items():
        table.append(
            [
                name,
                f"{update[name]:.0f}",
                f"{update[name] / update['gapless']:.1f}",
                f"{forward[name]:.0f}" if name in forward else "–",
                f"{peak_bytes(lambda contender=contender: contender.update(*data)) / 1e3:.1f}",
                waits(CONTENDERS[name], classes),
            ]
        )
    return [*table, ["the `argmax` alone", f"{floor:.0f}", f"{floor / update['gapless']:.1f}", *["–"] * 2, 0]]


def mean_rows(rounds: int) -> list[list[object]]:
    value, state = torch.tensor(0.5), torch.zeros(())
    ours, two = native.MeanMetric(), native.MeanMetric(nan_strategy="disable")
    three, four = torchmetrics.MeanMetric(), torchmetrics.MeanMetric(nan_strategy="disable")
    calls: dict[str, Callable[[], Any]] = {
        "gapless": lambda: ours.update(value),
        'gapless, `nan_strategy="disable"`': lambda: two.update(value),
        "TorchMetrics": lambda: three.update(value),
        'TorchMetrics, `nan_strategy="disable"`': lambda: four.update(value),
    }
    if torcheval:
        five = torcheval.Mean()
        calls["torcheval"] = lambda: five.update(value)
    calls["`add_` to one tensor"] = lambda: state.add_(value)
    best_times = in_turn(calls, rounds)
    return [
        [name, f"{time_:.1f}", f"{time_ / best_times['gapless']:.2f}"] for name, time_ in best_times.items()
    ]


class CollectiveCounter(TorchDispatchMode):
    """Counts the collectives the process group runs, whoever calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[func.name().split("::")[1].split(".")[0].strip("_")] += 1
        return func(*args, **(kwargs or {}))


def count_collectives(into: str) -> None:
    """Run in one of two processes: an update, then ``compute`` under a counter."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    counts_of: dict[str, dict[str, int]] = {}
    for name, make in CONTENDERS.items():
        contender = make(1000, "cpu")
        loss, preds, _ = batch(1000, 1000)
        # Every class, because torcheval's macro recall raises where one is absent.
        contender.update(loss, preds, torch.arange(1000))
        with CollectiveCounter() as counter:
            contender.compute()
            counts_of[name] = dict(counter.counts)
    dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        Path(into).write_text(json.dumps(counts_of))


def collective_rows() -> list[list[object]]:
    with tempfile.TemporaryDirectory() as folder:
        into = str(Path(folder) / "found.json")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--collectives", into], env={**shared, "RANK": str(rank)}
            )
            for rank in range(2)
        ]
        if sum(abs(process.wait(120)) for process in processes):
            raise RuntimeError("a process that counts collectives failed")
        counts_of = json.loads(Path(into).read_text())
    return [
        [name, sum(counts.values()), ", ".join(f"{n} {kind}" for kind, n in counts.items())]
        for name, counts in counts_of.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--collectives", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.collectives:
        count_collectives(options.collectives)
        return
    packages = ["torchmetrics", *(["torcheval"] if torcheval else [])]
    text = _sheet.header(
        "Metrics, library by library",
        "python benchmarks/metrics.py",
        f"on the CPU, one thread; {' and '.join(f'{name} {metadata.version(name)}' for name in packages)} in "
        "turn with gapless in one process, the best of the rounds; waits on the emulated device, bytes from "
        "torch's profiler and `tracemalloc`, collectives between two gloo processes as the process group "
        "sees them",
    )
    text += (
        "The mean of a loss (a tensor of no dimension) and macro accuracy, precision, recall and F1 of "
        "logits, with every check on except under *best options*: `validate_args=False`, "
        '`nan_strategy="disable"`, compute groups given.\n'
    )
    columns = ["", "update, µs", "× gapless", "forward, µs"]
    columns += ["allocated at once, kB", "waits per update"]
    for classes, rows in SIZES:
        text += f"\n## {classes} classes, batches of {rows}\n\n"
        text += _sheet.table(columns, classification_rows((classes, rows), options.rounds))
    text += "\n## Mean of a tensor of no dimension\n\n"
    text += _sheet.table(["", "update, µs", "× gapless"], mean_rows(options.rounds))
    text += "\n## `compute` over two processes, 1000 classes\n\n"
    text += _sheet.table(["", "collectives", "which"], collective_rows())
    print(_sheet.write("metrics", text).read_text())


if __name__ == "__main__":
    main()
