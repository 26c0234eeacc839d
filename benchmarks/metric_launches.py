"""How many kernels metrics ask a device for, library by library, counted on the emulated device."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

import _sheet
import metrics as libraries
import torch
import torchmetrics
import torchmetrics.detection
import torchmetrics.segmentation
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gapless
import gapless.metrics as native
from gapless.emulation.dispatch.operators import launches
from gapless.metrics.torchmetrics import unwait

triton = importlib.import_module("triton") if importlib.util.find_spec("triton") else None

Calls = tuple[Callable[..., Any], Callable[[], Any], Callable[[], Any]]
"""Functions that update, compute and reset."""


class LaunchCounter(TorchDispatchMode):
    """Counts operators that launch work on the device, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        held = [
            value for item in (*args, out) for value in (item if isinstance(item, (list, tuple)) else [item])
        ]
        self.launches += launches(func) and any(isinstance(value, Tensor) and value.is_cuda for value in held)
        return out

    def launched(self, *_: Any) -> None:
        """Count a kernel that Triton launched."""
        self.launches += 1


def count_launches(call: Callable[[], Any]) -> int:
    with LaunchCounter() as counter:
        if triton:
            triton.knobs.runtime.launch_enter_hook.add(counter.launched)
        try:
            call()
        finally:
            if triton:
                triton.knobs.runtime.launch_enter_hook.remove(counter.launched)
    return counter.launches


def in_one_collection(classes: int) -> Calls:
    several = {name: getattr(native, name)(classes) for name in libraries.NAMES}
    scores = native.MetricCollection({"loss": native.MeanMetric(), **several}).to("cuda")
    return (lambda loss, p, t: scores.update(value=loss, preds=p, target=t)), scores.compute, scores.reset


def separately(metrics: list[Any]) -> Calls:
    def update(loss: Tensor, preds: Tensor, target: Tensor) -> None:
        metrics[0].update(loss)
        for metric in metrics[1:]:
            metric.update(preds, target)

    return (
        update,
        lambda: [metric.compute() for metric in metrics],
        lambda: [metric.reset() for metric in metrics],
    )


def ours(classes: int) -> Calls:
    several = [getattr(native, name)(classes).to("cuda") for name in libraries.NAMES]
    return separately([native.MeanMetric().to("cuda"), *several])


def theirs(classes: int, **options: Any) -> Calls:
    mean = torchmetrics.MeanMetric(**({"nan_strategy": "disable"} if options else {}))
    return separately(
        [mean.to("cuda"), *(metric(classes, **options).to("cuda") for metric in libraries.THEIRS)]
    )


def in_groups(classes: int, changed: bool) -> Calls:
    options = {} if changed else {"validate_args": False}
    mean = torchmetrics.MeanMetric(**({} if changed else {"nan_strategy": "disable"})).to("cuda")
    several = [metric(classes, **options) for metric in libraries.THEIRS]
    scores = torchmetrics.MetricCollection(several, compute_groups=[list(libraries.NAMES)]).to("cuda")
    if changed:
        unwait([mean, scores])
    return (
        lambda loss, p, t: (mean.update(loss), scores.update(p, t)),
        lambda: (mean.compute(), scores.compute()),
        lambda: (mean.reset(), scores.reset()),
    )


def with_torcheval(classes: int) -> Calls:
    library = libraries.torcheval
    several = [
        getattr(library, name)(num_classes=classes, average="macro", device=torch.device("cuda"))
        for name in libraries.NAMES
    ]
    for metric in several:  # with every class, as its macro recall raises where one is absent
        metric.update(torch.eye(classes, device="cuda"), torch.arange(classes, device="cuda"))
    return separately([library.Mean(device=torch.device("cuda")), *several])


def by_hand(classes: int) -> Calls:
    """Return the calls written by hand, without checks, averaging over all classes."""
    counts = torch.zeros(3, classes, dtype=torch.int64, device="cuda")
    mean, unit = torch.zeros(2, device="cuda"), torch.ones((), dtype=torch.int64, device="cuda")

    def update(loss: Tensor, preds: Tensor, target: Tensor) -> None:
        predicted = preds.argmax(1)
        counts[0].scatter_add_(0, target, unit.expand_as(target))
        counts[1].scatter_add_(0, predicted, unit.expand_as(target))
        counts[2].scatter_add_(0, predicted, (predicted == target).to(torch.int64))
        mean[0].add_(loss)
        mean[1].add_(1)

    def compute() -> list[Tensor]:
        actual, predicted, hits = counts.unbind()
        recall, precision = (hits / actual).nan_to_num_(), (hits / predicted).nan_to_num_()
        f1 = (2 * hits / (actual + predicted)).nan_to_num_()
        return [mean[0] / mean[1], recall.mean(), precision.mean(), f1.mean()]

    return update, compute, lambda: (counts.zero_(), mean.zero_())


def with_triton(make: Callable[[], Calls]) -> Callable[[], Calls]:
    """Return `make` with its calls inside `native.fused()`."""

    def within(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with native.fused():
                return call(*args, **kwargs)

        return run

    def make_fused() -> Calls:
        update, compute, reset = make()
        return within(update), within(compute), within(reset)

    return make_fused


FIVE: dict[str, Callable[[int], Calls]] = {
    "gapless, one collection": in_one_collection,
    **(
        {"gapless, one collection, `fused()`": lambda n: with_triton(lambda: in_one_collection(n))()}
        if triton
        else {}
    ),
    "gapless, five metrics": ours,
    **({"gapless, five metrics, `fused()`": lambda n: with_triton(lambda: ours(n))()} if triton else {}),
    "written by hand, unchecked": by_hand,
    "TorchMetrics, five metrics": theirs,
    "TorchMetrics, five metrics, best options": lambda classes: theirs(classes, validate_args=False),
    "TorchMetrics, groups given, best options": lambda classes: in_groups(classes, changed=False),
    "TorchMetrics, groups given, after `unwait`": lambda classes: in_groups(classes, changed=True),
    **({"torcheval, five metrics": with_torcheval} if libraries.torcheval else {}),
}


def masks_by_hand(name: str) -> Calls:
    """Return `MeanIoU` per class and image, or `DiceScore` averaged over each image's classes, by hand
    without checks."""
    sums = torch.zeros(2, 10 if name == "MeanIoU" else 1, dtype=torch.float64, device="cuda")
    unit = torch.ones((), dtype=torch.int64, device="cuda")

    def update(preds: Tensor, target: Tensor) -> None:
        pairs = (target * 10 + preds).flatten(1)
        table = torch.zeros(len(pairs), 100, dtype=torch.int64, device="cuda")
        table = table.scatter_add_(1, pairs, unit.expand_as(pairs)).view(-1, 10, 10)
        both, either = table.diagonal(0, 1, 2), table.sum(1) + table.sum(2)
        iou = name == "MeanIoU"
        scores = both / (either - both) if iou else (2 * both / either).nanmean(1, keepdim=True)
        sums[0].add_(scores.nansum(0))
        sums[1].add_((~scores.isnan()).sum(0))

    return update, lambda: sums[0].sum() / sums[1].sum(), sums.zero_


def jaccard_by_hand() -> Calls:
    """Return the Jaccard index from a confusion matrix, without checks."""
    table = torch.zeros(100, dtype=torch.int64, device="cuda")
    unit = torch.ones((), dtype=torch.int64, device="cuda")

    def update(preds: Tensor, target: Tensor) -> None:
        pairs = (target * 10 + preds.argmax(1)).flatten()
        table.scatter_add_(0, pairs, unit.expand_as(pairs))

    def compute() -> Tensor:
        matrix = table.view(10, 10)
        both = matrix.diagonal()
        return (both / (matrix.sum(0) + matrix.sum(1) - both)).nanmean()

    return update, compute, table.zero_


def area_by_hand() -> Calls:
    """Return the ROC area of distinct probabilities, without checks."""
    kept: list[tuple[Tensor, Tensor]] = []

    def compute() -> Tensor:
        preds, target = (torch.cat(tensors) for tensors in zip(*kept, strict=True))
        ordered = target[preds.argsort(descending=True)]
        tps = ordered.cumsum(0)
        return (tps * (1 - ordered)).sum() / (tps[-1] * (len(tps) - tps[-1]))

    return lambda preds, target: kept.append((preds, target)), compute, kept.clear


def binned_by_hand() -> Calls:
    """Return the ROC area at 200 thresholds, without checks."""
    edges = torch.linspace(0, 1, 200, device="cuda")
    table = torch.zeros(2 * 201, dtype=torch.int64, device="cuda")
    unit = torch.ones((), dtype=torch.int64, device="cuda")

    def update(preds: Tensor, target: Tensor) -> None:
        at = torch.bucketize(preds, edges, right=True) * 2 + target
        table.scatter_add_(0, at, unit.expand_as(at))

    def compute() -> Tensor:
        above = table.view(201, 2).flip(0).cumsum(0)
        rates = above / above[-1]
        return torch.trapezoid(rates[:-1, 1], rates[:-1, 0])

    return update, compute, table.zero_


def row(name: str, make: Callable[[], Calls], batch: Callable[[], tuple[Tensor, ...]]) -> list[object]:
    """Return the launches of the fourth update, of compute and reset, and the waits of update and compute."""
    with gapless.emulate() as emulated:
        update, compute, reset = make()
        for _ in range(3):
            update(*batch())
        last_batch, before = batch(), emulated.waits
        updates = count_launches(lambda: update(*last_batch))
        waits, before = emulated.waits - before, emulated.waits
        computes = count_launches(compute)
        return [name, updates, computes, count_launches(reset), waits, emulated.waits - before]


def single(library: Any, name: str, *args: Any, changed: bool = False, **options: Any) -> Callable[[], Calls]:
    def make() -> Calls:
        metric = getattr(library, name)(*args, **options).to("cuda")
        if changed:
            unwait(metric)
        return metric.update, metric.compute, metric.reset

    return make


def rows_of(
    name: str, batch: Callable[[], tuple[Any, ...]], theirs: Any, *args: Any, ways: str = "", **options: Any
) -> list[list[object]]:
    """Return rows for a metric here and in TorchMetrics, and for the `ways` named: fused, best options,
    after `unwait`."""
    shown = "" if "thresholds" not in options else f"(thresholds={options['thresholds']})"
    ours, metric = single(native, name, *args, **options), f"`{name}{shown}`"
    rows = [row(f"gapless, {metric}", ours, batch)]
    if "fused" in ways and triton:
        rows.append(row(f"gapless, {metric}, `fused()`", with_triton(ours), batch))
    rows.append(row(f"TorchMetrics, {metric}", single(theirs, name, *args, **options), batch))
    if "best" in ways:
        best = single(theirs, name, *args, validate_args=False, **options)
        rows.append(row(f"TorchMetrics, {metric}, best options", best, batch))
    if "unwait" in ways:
        after = single(theirs, name, *args, changed=True, **options)
        rows.append(row(f"TorchMetrics, {metric}, after `unwait`", after, batch))
    return rows


def image(pixels: int, scores: bool) -> Callable[[], tuple[Tensor, Tensor]]:
    def batch() -> tuple[Tensor, Tensor]:
        target = torch.randint(0, 10, (4, pixels, pixels), device="cuda")
        preds = torch.randn(4, 10, pixels, pixels, device="cuda") if scores else target.roll(1)
        return preds, target

    return batch


def binary() -> tuple[Tensor, Tensor]:
    return torch.rand(4096, device="cuda"), torch.randint(0, 2, (4096,), device="cuda")


def segments() -> tuple[Tensor, Tensor]:
    """Return two images of 64 segments, and predictions with a fifth of the points wrong."""
    side = torch.arange(64, device="cuda") // 8
    category = (side + side.unsqueeze(1)) % 10
    target = torch.stack((category, side * 8 + side.unsqueeze(1)), -1).expand(2, -1, -1, -1)
    other = torch.rand(2, 64, 64, 1, device="cuda") < 0.2
    return torch.where(other, target.roll(8, 2), target), target


def boxes(images: int) -> Callable[[], tuple[Any, Any]]:
    """Return a function that makes images with seven objects each and a hundred boxes near them."""

    def batch() -> tuple[Any, Any]:
        preds, target = [], []
        torch.manual_seed(images)  # kernels of `compute` follow from the most boxes of a class in an image
        for _ in range(images):
            objects = torch.rand(7, 2, device="cuda").mul(400).repeat(1, 2)
            objects[:, 2:] += 20 + torch.rand(7, 2, device="cuda") * 100
            labels = torch.randint(0, 80, (7,), device="cuda")
            near = torch.randint(0, 7, (100,), device="cuda")
            detected = objects[near] + torch.randn(100, 4, device="cuda")
            preds.append(
                {"boxes": detected, "scores": torch.rand(100, device="cuda"), "labels": labels[near]}
            )
            target.append({"boxes": objects, "labels": labels})
        return preds, target

    return batch


def segmentation_table(columns: list[str], pixels: int) -> str:
    """Return the table of segmentation metrics; torcheval has none."""
    rows: list[list[object]] = []
    options = {"num_classes": 10, "input_format": "index"}
    labels, scores = image(pixels, False), image(pixels, True)
    for kind in ("MeanIoU", "DiceScore"):
        rows += rows_of(kind, labels, torchmetrics.segmentation, ways="unwait", **options)
        rows.append(row(f"written by hand, `{kind}`, unchecked", lambda k=kind: masks_by_hand(k), labels))
    kind = "MulticlassJaccardIndex"
    rows += rows_of(kind, scores, torchmetrics.classification, 10, ways="fused best unwait")
    rows.append(row(f"written by hand, `{kind}`, unchecked", jaccard_by_hand, scores))
    return f"\n## Segmentation, 10 classes, 4 × {pixels}²\n\n" + _sheet.table(columns, rows)


def area_table(columns: list[str]) -> str:
    rows: list[list[object]] = []
    named = ((None, "BinaryAUROC", area_by_hand), (200, "BinaryBinnedAUROC", binned_by_hand))
    for thresholds, name, by_hand_ in named:
        options = {"thresholds": thresholds, "ways": "best unwait"}
        rows += rows_of("BinaryAUROC", binary, torchmetrics.classification, **options)
        if libraries.torcheval:
            make = single(libraries.torcheval, name, device=torch.device("cuda"))
            rows.append(row(f"torcheval, `{name}`", make, binary))
        shown = f"`BinaryAUROC(thresholds={thresholds})`"
        rows.append(row(f"written by hand, {shown}, unchecked", by_hand_, binary))
    return "\n## AUROC, 4096 scores\n\n" + _sheet.table(columns, rows)


def detection_tables(columns: list[str]) -> str:
    """Return the tables of panoptic quality and boxes; TorchMetrics has the latter with torchvision and
    pycocotools."""
    text = "\n## Panoptic quality, 2 × 64², 10 categories, 64 segments\n\n"
    rows: list[list[object]] = []
    for kind in ("PanopticQuality", "ModifiedPanopticQuality"):
        options = {"things": set(range(8)), "stuffs": {8, 9}}
        rows += rows_of(kind, segments, torchmetrics.detection, ways="unwait", **options)
    text += _sheet.table(columns, rows)
    text += "\n## Detected boxes, 100 in each image, 80 classes\n\n"
    rows = []
    for name, library in {"gapless": native, "TorchMetrics": torchmetrics.detection}.items():
        for images in (4, 16):
            if hasattr(library, "MeanAveragePrecision"):
                make = single(library, "MeanAveragePrecision")
                rows.append(row(f"{name}, `MeanAveragePrecision`, {images} images", make, boxes(images)))
    return text + _sheet.table(columns, rows)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    columns = ["", "update", "compute", "reset", "waits per update", "waits per compute"]
    packages = ["torchmetrics", *(["torcheval"] if libraries.torcheval else [])]
    text = _sheet.header(
        "Kernels that metrics launch",
        "python benchmarks/metric_launches.py",
        "operators that run on the emulated device, views left out, in the fourth update and in "
        f"what follows; {' and '.join(f'{package} {metadata.version(package)}' for package in packages)}; "
        "some are several kernels on a GPU; where scores are kept, two more each time that storage doubles; "
        f"`fused()`: Triton's kernels (Triton {triton.__version__ if triton else 'is not installed'}), whose "
        "times on a GPU have not been measured yet",
    )
    for classes in (10, 1000):
        data = lambda classes=classes: libraries.batch(classes, 128, "cuda")  # noqa: E731
        text += f"\n## A mean loss and four macro averages, {classes} classes, batches of 128\n\n"
        rows = [row(name, lambda make=make, c=classes: make(c), data) for name, make in FIVE.items()]
        text += _sheet.table(columns, rows)
    for pixels in (256, 1024):
        text += segmentation_table(columns, pixels)
    text += area_table(columns) + detection_tables(columns)
    print(_sheet.write("metric_launches", text).read_text())


if __name__ == "__main__":
    main()
