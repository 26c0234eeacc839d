"""One or more settings of every metric, with batches for them: what the laws are tested on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import gapless.metrics as metrics
from gapless.metrics.tasks import Task

CLASSES, LABELS, ROWS = 4, 3, 12
DATA_SIZED = ("ROC", "PrecisionRecallCurve")
TASKS = [name for name in metrics.classification.__all__ if issubclass(getattr(metrics, name), Task)]
NEEDED: dict[str, dict[str, Any]] = {
    "FBetaScore": {"beta": 0.5},
    "MinkowskiDistance": {"p": 3},
    "PrecisionAtFixedRecall": {"min_recall": 0.4},
    "RecallAtFixedPrecision": {"min_precision": 0.4},
    "SensitivityAtSpecificity": {"min_specificity": 0.4},
    "SpecificityAtSensitivity": {"min_sensitivity": 0.4},
}
"""Arguments that these cannot be made without, beside the number of classes."""
SCORED = tuple(name for name in TASKS if "thresholds" in getattr(metrics, name).arguments)
"""Those with thresholds."""


def required(name: str) -> dict[str, Any]:
    """What `NEEDED` has for a metric that is no task's; it must be all that has no default."""
    parameters = inspect.signature(getattr(metrics, name)).parameters.values()
    bare = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    missing = [argument for argument in bare if argument not in NEEDED.get(name, {})]
    assert not missing, f"add to NEEDED in tests/metrics/samples.py: {name} cannot be made without {missing}"
    return NEEDED.get(name, {})


class Sample(NamedTuple):
    """A metric, how it is set, what its batches are, and whether ``compute`` may wait."""

    name: str
    options: dict[str, Any]
    batch: Callable[[torch.Generator, str], tuple[Any, ...]]
    may_wait: bool = False

    def make(self, home: Any = metrics) -> Any:
        return getattr(home, self.name)(**self.options)

    def data(self, seed: int, device: str = "cpu") -> tuple[Any, ...]:
        return self.batch(torch.Generator().manual_seed(seed), device)

    @property
    def label(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in self.options.items())})"


def placed(value: Tensor, device: str) -> Tensor:
    """`value` on `device`, without a wait."""
    return value if device == "cpu" else value.pin_memory().to(device, non_blocking=True)


def multiclass(ignore: int | None = None, kind: str = "logits", extra: tuple[int, ...] = ()) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        preds = torch.randn(ROWS, CLASSES, *extra, generator=random)
        preds = preds.softmax(1) if kind == "probabilities" else preds
        target = torch.randint(0, CLASSES, (ROWS, *extra), generator=random)
        if kind == "labels":
            preds = preds.argmax(1)
        if ignore is not None:
            target = target.masked_fill(torch.rand(target.shape, generator=random) < 0.3, ignore)
        return placed(preds, device), placed(target, device)

    return batch


def binary(ignore: int | None = None, kind: str = "logits", shape: tuple[int, ...] = (ROWS,)) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        preds = torch.randn(shape, generator=random)
        preds = preds.sigmoid() if kind == "probabilities" else preds
        preds = (preds > 0).long() if kind == "labels" else preds
        target = torch.randint(0, 2, shape, generator=random)
        if ignore is not None:
            target = target.masked_fill(torch.rand(shape, generator=random) < 0.3, ignore)
        return placed(preds, device), placed(target, device)

    return batch


def pairs(*shape: int) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        target = torch.rand(shape, generator=random) + 0.1
        return placed(target + 0.3 * torch.rand(shape, generator=random), device), placed(target, device)

    return batch


def values(*shape: int, nan: bool = False) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor]:
        found = torch.randn(shape, generator=random)
        if nan:
            found = found.masked_fill(torch.rand(shape, generator=random) < 0.2, torch.nan)
        return (placed(found, device),)

    return batch


def weighted(*shape: int) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        return placed(torch.randn(shape, generator=random), device), placed(
            torch.rand(shape, generator=random), device
        )

    return batch


def tokens(ignore: int | None) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        target = torch.randint(0, 7, (2, 5), generator=random)
        if ignore is not None:
            target = target.masked_fill(torch.rand(target.shape, generator=random) < 0.3, ignore)
        return placed(torch.randn(2, 5, 7, generator=random), device), placed(target, device)

    return batch


def masks(form: str) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        index = torch.randint(0, CLASSES, (2, 6, 6), generator=random)
        other = torch.randint(0, CLASSES, (2, 6, 6), generator=random)
        classes = torch.arange(CLASSES).reshape(-1, 1, 1)
        if form == "index":
            return placed(index, device), placed(other, device)
        one_hot = (index.unsqueeze(1) == classes).long()
        if form == "mixed":
            return placed(torch.randn(2, CLASSES, 6, 6, generator=random), device), placed(other, device)
        return placed(one_hot, device), placed((other.unsqueeze(1) == classes).long(), device)

    return batch


def classification() -> list[Sample]:
    found: list[Sample] = []
    for name in TASKS:
        found += of_task(name)
    for ignore in (None, -1, 1):
        for kind in ("logits", "probabilities", "labels"):
            options = {"num_classes": CLASSES, "ignore_index": ignore}
            found.append(Sample("MulticlassF1Score", options, multiclass(ignore, kind)))
            found.append(Sample("MulticlassConfusionMatrix", options, multiclass(ignore, kind)))
            options = {"num_labels": LABELS, "ignore_index": ignore}
            found.append(Sample("MultilabelF1Score", options, binary(ignore, kind, (ROWS, LABELS))))
            found.append(Sample("BinaryF1Score", {"ignore_index": ignore}, binary(ignore, kind)))
    for average in ("micro", "macro", "weighted", "none"):
        for top_k in (1, 2):
            options = {"num_classes": CLASSES, "average": average, "top_k": top_k}
            found.append(Sample("MulticlassAccuracy", options, multiclass()))
        options = {
            "num_classes": CLASSES,
            "average": average,
            "multidim_average": "samplewise",
            "capacity": 64,
        }
        found.append(Sample("MulticlassRecall", options, multiclass(extra=(5,)), True))
        options.pop("capacity")
        found.append(Sample("MulticlassRecall", options, multiclass(extra=(5,))))
    found.append(Sample("MulticlassAccuracy", {"average": "micro"}, multiclass(kind="labels")))
    for mode in ("crammer-singer", "one-vs-all"):
        options = {"num_classes": CLASSES, "squared": True, "multiclass_mode": mode}
        found.append(Sample("MulticlassHingeLoss", options, multiclass()))
    for name in ("CoverageError", "RankingAveragePrecision", "RankingLoss"):
        for ignore in (None, -1):
            options = {"num_labels": LABELS, "ignore_index": ignore}
            found.append(Sample(f"Multilabel{name}", options, binary(ignore, shape=(ROWS, LABELS))))
    return found


def of_task(name: str) -> list[Sample]:
    waits = name in DATA_SIZED
    found = []
    forms = getattr(metrics, name).forms
    more: list[dict[str, Any]] = [{"thresholds": None}, {"thresholds": 7}] if name in SCORED else [{}]
    for options in [{**NEEDED.get(name, {}), **one} for one in more]:
        wait = waits and options["thresholds"] is None
        for ignore in (None, -1):
            base = {**options, "ignore_index": ignore}
            if "binary" in forms:
                found.append(Sample(f"Binary{name}", base, binary(ignore), wait))
            found.append(
                Sample(f"Multiclass{name}", {**base, "num_classes": CLASSES}, multiclass(ignore), wait)
            )
            if "multilabel" in forms:
                shape = (ROWS, LABELS)
                options_ = {**base, "num_labels": LABELS}
                found.append(Sample(f"Multilabel{name}", options_, binary(ignore, shape=shape), wait))
        task = {"task": "multiclass", "num_classes": CLASSES, **options}
        found.append(Sample(name, task, multiclass(), wait))
    return found


def others() -> list[Sample]:
    found = [Sample("MeanMetric", {"nan_strategy": nan}, values(6, nan=True)) for nan in ("ignore", 0.5)]
    found += [Sample("MeanMetric", {}, batch) for batch in (values(), values(3, 2), weighted(4))]
    found.append(Sample("MeanMetric", {"nan_strategy": "disable"}, values(4)))
    for name in ("SumMetric", "MaxMetric", "MinMetric"):
        found += [Sample(name, {}, values(3)), Sample(name, {"nan_strategy": "ignore"}, values(6, nan=True))]
    found.append(Sample("CatMetric", {"nan_strategy": "disable"}, values(3)))
    found.append(Sample("CatMetric", {}, values(3), True))
    found.append(Sample("CatMetric", {"nan_strategy": "error", "capacity": 64}, values(3), True))
    found += [Sample(name, {"window": 3}, values(2)) for name in ("RunningMean", "RunningSum")]
    for name in metrics.regression.__all__:
        shape = (ROWS, 3) if name == "CosineSimilarity" else (ROWS,)
        found.append(Sample(name, required(name), pairs(*shape)))
    for name in ("MeanSquaredError", "MeanAbsoluteError", "PearsonCorrCoef", "ConcordanceCorrCoef"):
        found.append(Sample(name, {"num_outputs": 3}, pairs(ROWS, 3)))
    for name in ("R2Score", "ExplainedVariance"):
        found.append(Sample(name, {"multioutput": "variance_weighted"}, pairs(ROWS, 3)))
    found += [Sample("CosineSimilarity", {"reduction": how}, pairs(ROWS, 3)) for how in ("mean", "none")]
    found.append(Sample("SpearmanCorrCoef", {"num_outputs": 3}, pairs(ROWS, 3)))
    found += [Sample("SpearmanCorrCoef", {"num_outputs": n, "capacity": 64}, pairs(ROWS, n)) for n in (1, 2)]
    for name in ("Perplexity", "TokenAccuracy"):
        found += [Sample(name, {"ignore_index": ignore}, tokens(ignore)) for ignore in (None, -100)]
    found.append(Sample("TokenAccuracy", {"top_k": 2}, tokens(None)))
    for form in ("one-hot", "index", "mixed"):
        options: dict[str, Any] = {"num_classes": CLASSES, "input_format": form}
        found.append(Sample("MeanIoU", {**options, "per_class": True}, masks(form)))
        if form != "index":
            found.append(Sample("MeanIoU", {"input_format": form}, masks(form)))
        found.append(Sample("DiceScore", {**options, "include_background": False}, masks(form)))
    return found


SAMPLES = classification() + others()
