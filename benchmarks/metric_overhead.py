"""What five metrics cost a training step of ResNet-18, and what each way not to wait gives back.

    python benchmarks/metric_overhead.py            # small on a CPU, at full size on a GPU; prints the sheet
    python benchmarks/metric_overhead.py --write    # … and keeps it in benchmarks/sheets

A mean of the loss, accuracy, precision, recall and F1 are updated in every step: not at all, as TorchMetrics
is mostly used first, after each step of examples/metrics, by TorchMetrics after `unwait`, and by
gapless.metrics. Reading the results is no part of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples"), str(HERE.parent / "examples" / "metrics")]
import _sheet
import _stages
import torch
import torchmetrics
from models.resnet import resnet18
from torch import Tensor
from unchecked import UncheckedMean

import gapless.metrics as native
from gapless.metrics.torchmetrics import unwait

SCORES = ("Accuracy", "Precision", "Recall", "F1Score")
Update = Callable[[Tensor, Tensor, Tensor], Any]


@dataclass(frozen=True)
class Size:
    """Images (batch, 3, pixels, pixels) of `classes` classes."""

    pixels: int
    batch: int
    classes: int
    average: str = "micro"

    def __str__(self) -> str:
        images = f"{self.batch} images of {self.pixels}×{self.pixels}"
        return f"ResNet-18, {images}, {self.classes} classes, {self.average} averages"


SMALL, FULL, TINY = Size(32, 8, 100), Size(224, 128, 1000), Size(8, 2, 10)


def scores(library: Any, size: Size, device: str) -> list[Any]:
    """Return the four metrics of classes."""
    options = {"task": "multiclass", "num_classes": size.classes, "average": size.average}
    return [getattr(library, name)(**options).to(device) for name in SCORES]


def theirs(size: Size, device: str, mean: Any, weigh: Callable[[Tensor], Any]) -> Update:
    """Return the update of TorchMetrics, with the loss weighted by `weigh`."""
    average, class_metrics = mean.to(device), scores(torchmetrics, size, device)

    def update(loss: Tensor, output: Tensor, labels: Tensor) -> None:
        average.update(loss, weigh(loss))
        for metric in class_metrics:
            metric.update(output, labels)

    return update


def with_step_times(size: Size, device: str, on_host: bool) -> Update:
    """Return the update without the check for NaN, with mean step times on the host or the device."""
    update = theirs(size, device, UncheckedMean(), torch.ones_like)
    mean = UncheckedMean().to("cpu" if on_host else device)
    last = time.perf_counter()

    def both(loss: Tensor, output: Tensor, labels: Tensor) -> None:
        nonlocal last
        update(loss, output, labels)
        now = time.perf_counter()
        if on_host:
            mean.update(now - last)
        else:
            elapsed = torch.as_tensor(now - last)
            mean.update(elapsed, torch.ones_like(elapsed))
        last = now

    return both


def after_unwait(size: Size, device: str) -> Update:
    average, class_metrics = torchmetrics.MeanMetric().to(device), scores(torchmetrics, size, device)
    unwait([average, *class_metrics])

    def update(loss: Tensor, output: Tensor, labels: Tensor) -> None:
        average.update(loss, 1.0)
        for metric in class_metrics:
            metric.update(output, labels)

    return update


def ours(size: Size, device: str) -> Update:
    average = native.MeanMetric().to(device)
    options = {"task": "multiclass", "num_classes": size.classes, "average": size.average}
    class_metrics = native.MetricCollection([getattr(native, name)(**options) for name in SCORES]).to(device)

    def update(loss: Tensor, output: Tensor, labels: Tensor) -> None:
        average.update(loss, 1.0)
        class_metrics.update(output, labels)

    return update


def stages(size: Size, device: str) -> dict[str, Update]:
    """Return the updates, in the order of the example's steps."""
    return {
        "no metrics": lambda loss, output, labels: None,
        "TorchMetrics, as first written": theirs(size, device, torchmetrics.MeanMetric(), lambda loss: 1.0),
        "step 1: the weight is made on the device": theirs(
            size, device, torchmetrics.MeanMetric(), torch.ones_like
        ),
        "step 2: no check for NaN": theirs(size, device, UncheckedMean(), torch.ones_like),
        "step 3: and step times, on the host": with_step_times(size, device, on_host=True),
        "step 4: and step times, on the device": with_step_times(size, device, on_host=False),
        "TorchMetrics, as first written, after `unwait`": after_unwait(size, device),
        "gapless.metrics": ours(size, device),
    }


def steps(size: Size) -> _stages.Steps:
    """Return for a device a training step per update; they share a network."""

    def on(device: str) -> dict[str, _stages.Step]:
        torch.manual_seed(0)
        model = resnet18(size.classes).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        criterion = torch.nn.CrossEntropyLoss()
        images = torch.randn(size.batch, 3, size.pixels, size.pixels, device=device)
        labels = torch.randint(size.classes, (size.batch,), device=device)

        def step_with(update: Update) -> _stages.Step:
            def step() -> None:
                optimizer.zero_grad()
                output = model(images)
                loss = criterion(output, labels)
                loss.backward()
                optimizer.step()
                # What follows the optimizer is the next step's, where steps are told by it.
                update(loss.detach(), output.detach(), labels)

            return step

        return {name: step_with(update) for name, update in stages(size, device).items()}

    return on


def sheet(rows: list[_stages.Measured], size: Size, rounds: int, block: int, command: str) -> str:
    """Return the sheet."""
    sizes = f"{size}; torchmetrics {metadata.version('torchmetrics')}"
    text = _sheet.header("Metrics in a training step", command, _stages.method(rounds, block, sizes))
    return text + _stages.table(rows)


if __name__ == "__main__":
    block = 20 if _stages.has_gpu() else 10
    sys.exit(_stages.main(__doc__, sys.modules[__name__], "metric_overhead", block))
