"""Samples for the laws: every metric with one or more settings, and batches for each."""

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
    "CriticalSuccessIndex": {"threshold": 0.5},
    "FBetaScore": {"beta": 0.5},
    "MinkowskiDistance": {"p": 3},
    "PeakSignalNoiseRatio": {"data_range": 1.5},
    "PrecisionAtFixedRecall": {"min_recall": 0.4},
    "ROUGEScore": {"rouge_keys": ("rouge1", "rouge2", "rougeL")},
    "RecallAtFixedPrecision": {"min_precision": 0.4},
    "SensitivityAtSpecificity": {"min_specificity": 0.4},
    "SpecificityAtSensitivity": {"min_sensitivity": 0.4},
}
"""Required arguments of metrics, besides the number of classes."""
ROWWISE = ("CosineSimilarity", "JensenShannonDivergence", "KLDivergence")
"""Metrics of rows."""
ENSEMBLES = ("ContinuousRankedProbabilityScore",)
"""Metrics of several predictions per target."""
SCORED = tuple(name for name in TASKS if "thresholds" in getattr(metrics, name).arguments)
"""Metrics with thresholds."""


def required_options(name: str) -> dict[str, Any]:
    """Return the options in `NEEDED` for a metric, which must cover all arguments without a default."""
    parameters = inspect.signature(getattr(metrics, name)).parameters.values()
    bare = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    missing = [argument for argument in bare if argument not in NEEDED.get(name, {})]
    assert not missing, f"add to NEEDED in tests/metrics/samples.py: {name} cannot be made without {missing}"
    return NEEDED.get(name, {})


class Sample(NamedTuple):
    """A metric with its options, its batches, and whether ``compute`` may wait."""

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


def place(value: Tensor, device: str) -> Tensor:
    """Return `value` on `device`, without waiting."""
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
        return place(preds, device), place(target, device)

    return batch


def binary(ignore: int | None = None, kind: str = "logits", shape: tuple[int, ...] = (ROWS,)) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        preds = torch.randn(shape, generator=random)
        preds = preds.sigmoid() if kind == "probabilities" else preds
        preds = (preds > 0).long() if kind == "labels" else preds
        target = torch.randint(0, 2, shape, generator=random)
        if ignore is not None:
            target = target.masked_fill(torch.rand(shape, generator=random) < 0.3, ignore)
        return place(preds, device), place(target, device)

    return batch


def pairs(*shape: int) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        target = torch.rand(shape, generator=random) + 0.1
        return place(target + 0.3 * torch.rand(shape, generator=random), device), place(target, device)

    return batch


def log_pairs(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
    both = torch.randn(2, ROWS, 3, generator=random).log_softmax(2)
    return place(both[0], device), place(both[1], device)


def forecasts(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
    target = torch.rand(ROWS, generator=random)
    preds = target.unsqueeze(1) + torch.randn(ROWS, 5, generator=random)
    return place(preds, device), place(target, device)


def values(*shape: int, nan: bool = False) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor]:
        numbers = torch.randn(shape, generator=random)
        if nan:
            numbers = numbers.masked_fill(torch.rand(shape, generator=random) < 0.2, torch.nan)
        return (place(numbers, device),)

    return batch


def weighted(*shape: int) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        return place(torch.randn(shape, generator=random), device), place(
            torch.rand(shape, generator=random), device
        )

    return batch


def tokens(ignore: int | None) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        target = torch.randint(0, 7, (2, 5), generator=random)
        if ignore is not None:
            target = target.masked_fill(torch.rand(target.shape, generator=random) < 0.3, ignore)
        return place(torch.randn(2, 5, 7, generator=random), device), place(target, device)

    return batch


def masks(form: str) -> Any:
    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        index = torch.randint(0, CLASSES, (2, 6, 6), generator=random)
        other = torch.randint(0, CLASSES, (2, 6, 6), generator=random)
        classes = torch.arange(CLASSES).reshape(-1, 1, 1)
        if form == "index":
            return place(index, device), place(other, device)
        one_hot = (index.unsqueeze(1) == classes).long()
        if form == "mixed":
            return place(torch.randn(2, CLASSES, 6, 6, generator=random), device), place(other, device)
        return place(one_hot, device), place((other.unsqueeze(1) == classes).long(), device)

    return batch


def documents(ignore: int | None = None, degrees: bool = False) -> Any:
    """Return documents of five queries, some of each in every batch; one query has no relevant document."""

    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor, Tensor]:
        preds = torch.randn(4 * ROWS, generator=random)
        target = torch.randint(0, 4 if degrees else 2, (4 * ROWS,), generator=random)
        queries = torch.randint(3, 8, (4 * ROWS,), generator=random)
        target = target.masked_fill(queries == 4, 0).masked_fill(queries == 6, 1)
        if ignore is not None:
            target = target.masked_fill(torch.rand(target.shape, generator=random) < 0.3, ignore)
        return place(preds, device), place(target, device), place(queries, device)

    return batch


def retrieval() -> list[Sample]:
    samples = []
    for name in metrics.retrieval.__all__:
        degrees = name == "RetrievalNormalizedDCG"
        more: list[dict[str, Any]] = [{}, {"capacity": 32 * ROWS}]
        more += [{"empty_target_action": how} for how in ("skip", "neg", "pos")]
        more += [{"aggregation": how} for how in ("median", "min", "max")]
        if "top_k" in inspect.signature(getattr(metrics, name)).parameters:
            more += [{"top_k": 3}, {"top_k": 40}]
        if name == "RetrievalPrecision":
            more.append({"top_k": 40, "adaptive_k": True})
        samples += [Sample(name, options, documents(degrees=degrees)) for options in more]
        samples.append(Sample(name, {"ignore_index": -1}, documents(-1, degrees)))
    return samples


def images() -> list[Sample]:
    flat, deep = pairs(2, 3, 20, 24), pairs(1, 2, 12, 14, 13)
    noise: list[dict[str, Any]] = [{"data_range": 1.5}, {"data_range": (0.2, 1.1)}]
    for dim, how in ((1, "none"), ((1, 2), "sum"), (0, "elementwise_mean")):
        noise.append({"data_range": 2.0, "dim": dim, "reduction": how})
    single: list[dict[str, Any]] = [
        {},
        {"data_range": 1.4, "reduction": "none"},
        {"data_range": (0.3, 1.0), "reduction": "sum"},
        {"return_full_image": True},
        {"return_contrast_sensitivity": True, "reduction": "sum"},
        {"gaussian_kernel": False, "kernel_size": (3, 5), "data_range": 1.0},
        {"sigma": (0.5, 1.2), "data_range": 1.0},
    ]
    several: list[dict[str, Any]] = [
        {"normalize": "simple"},
        {"normalize": None, "reduction": "sum"},
        {"reduction": "none", "data_range": 1.2},
    ]
    samples = [Sample("PeakSignalNoiseRatio", options, pairs(4, 3, 5)) for options in noise]
    ssim = "StructuralSimilarityIndexMeasure"
    samples += [Sample(ssim, options, flat) for options in single]
    samples.append(Sample(ssim, {"sigma": (0.5, 1.0, 1.5)}, deep))
    fixed = {"gaussian_kernel": False, "kernel_size": 3, "reduction": None, "capacity": 16}
    samples.append(Sample(ssim, fixed, deep, True))
    at_scales: dict[str, Any] = {"betas": (0.3, 0.4, 0.3), "kernel_size": 3, "sigma": 0.5}
    samples += [Sample(f"MultiScale{ssim}", {**at_scales, **options}, flat) for options in several]
    samples.append(Sample(f"MultiScale{ssim}", {**at_scales, "gaussian_kernel": False}, deep))
    return samples


def points(kinds: int = 5) -> Any:
    """Return two images of segments that overlap much; some points have an unknown category."""

    def batch(random: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
        category = torch.randint(0, kinds, (2, 3, 4), generator=random)
        instance = torch.randint(-1, 2, (2, 3, 4), generator=random)
        blocks = torch.stack((category, instance), -1).repeat_interleave(3, 1).repeat_interleave(2, 2)
        other = blocks.roll(1, 1)
        moved = torch.rand(other.shape[:-1], generator=random) < 0.6
        return place(torch.where(moved.unsqueeze(-1), blocks, other), device), place(blocks, device)

    return batch


def rasterize_boxes(corners: Tensor, height: int, width: int) -> Tensor:
    """Return boxes of integer corners as masks, ``[n, height, width]`` of bool."""
    left, top, right, bottom = corners.reshape(-1, 4, 1, 1).unbind(1)
    x, y = torch.arange(width), torch.arange(height).unsqueeze(1)
    return (x >= left) & (x < right) & (y >= top) & (y < bottom)


def boxes(extra: bool = False, images: int = 3, masks: bool = False) -> Any:
    """Return images with boxes, and masks if asked, of which some are detected; some images have none."""

    def batch(random: torch.Generator, device: str) -> tuple[list[Any], list[Any]]:
        preds, target = [], []
        for image in range(images):
            n, m = (int(torch.randint(0, 6, (), generator=random)) for _ in range(2))
            n, m = (0 if image == 1 else n), max(m, 1)
            corner, size = (torch.rand(m, 2, generator=random) * 60 for _ in range(2))
            true_boxes = torch.cat((corner, corner + size), 1).round()
            labels = torch.randint(0, 3, (m,), generator=random)
            chosen = torch.randint(0, m, (n,), generator=random)
            near = true_boxes[chosen] + torch.randint(-2, 3, (n, 4), generator=random)
            detected = {"boxes": near, "scores": torch.rand(n, generator=random), "labels": labels[chosen]}
            truth = {"boxes": true_boxes, "labels": labels}
            if extra:
                truth["iscrowd"] = (torch.rand(m, generator=random) < 0.3).int()
                truth["area"] = torch.rand(m, generator=random) * 4000
            if masks:
                detected["masks"], truth["masks"] = (
                    rasterize_boxes(near, 40, 50),
                    rasterize_boxes(true_boxes, 40, 50),
                )
            preds.append({name: place(value, device) for name, value in detected.items()})
            target.append({name: place(value, device) for name, value in truth.items()})
        return preds, target

    return batch


def detection() -> list[Sample]:
    both: dict[str, Any] = {"things": {0, 3}, "stuffs": {1, 2}}
    lenient = {**both, "allow_unknown_preds_category": True}
    samples = [Sample("PanopticQuality", both, points(4)), Sample("PanopticQuality", lenient, points())]
    for options in ({"return_sq_and_rq": True}, {"return_per_class": True}):
        samples.append(Sample("PanopticQuality", {**lenient, **options}, points()))
    samples.append(Sample("ModifiedPanopticQuality", both, points(4)))
    samples.append(Sample("ModifiedPanopticQuality", lenient, points()))
    several: list[dict[str, Any]] = [
        {},
        {"class_metrics": True, "average": "micro"},
        {"box_format": "xywh", "class_metrics": True, "extended_summary": True},
        {"box_format": "cxcywh", "max_detection_thresholds": [1, 2, 100], "iou_thresholds": [0.3, 0.75]},
    ]
    for options in several:
        samples.append(Sample("MeanAveragePrecision", options, boxes(len(options) > 1), True))
    for kinds in ("segm", ("bbox", "segm")):
        samples.append(Sample("MeanAveragePrecision", {"iou_type": kinds}, boxes(True, masks=True), True))
    return samples


WORDS = ["the", "cat", "sat", "on", "a", "mat", "Mat,", "and", "no", "dog", "ran", "off", "with", "it"]


def texts(references: int = 0) -> Any:
    """Return pairs of texts, or texts with several references each."""

    def batch(random: torch.Generator, device: str) -> tuple[list[str], list[Any]]:
        def text() -> str:
            length = int(torch.randint(4, 15, (), generator=random))
            places = torch.randint(0, len(WORDS), (length,), generator=random).tolist()
            return " ".join(WORDS[i] for i in places)

        preds = [text() for _ in range(3)]
        several = [[text() for _ in range(references)] + [f"{pred} {text()}"] for pred in preds]
        return preds, several if references else [f"{pred[3:]} {text()}" for pred in preds]

    return batch


def words(random: torch.Generator, device: str) -> tuple[list[str], list[str]]:
    """Return pairs of words of equal length; for other texts TorchMetrics does not try every alignment."""
    several = torch.randint(0, len(WORDS), (2, 6), generator=random).tolist()
    return tuple([WORDS[i] for i in row] for row in several)  # type: ignore[return-value]


def text() -> list[Sample]:
    names = ("CharErrorRate", "MatchErrorRate", "WordErrorRate", "WordInfoLost", "WordInfoPreserved")
    samples = [Sample(name, {}, texts()) for name in names]
    options: list[dict[str, Any]] = [{}, {"n_gram": 2, "smooth": True}, {"n_gram": 2, "weights": [0.3, 0.7]}]
    samples += [Sample("BLEUScore", chosen, texts(2)) for chosen in options]
    for more in ({}, {"substitution_cost": 2, "reduction": "sum"}, {"reduction": "none"}):
        samples.append(Sample("EditDistance", more, words))
    for how in ("best", "avg"):
        for count in (0, 2):
            samples.append(
                Sample("ROUGEScore", {**required_options("ROUGEScore"), "accumulate": how}, texts(count))
            )
    return samples


def classification() -> list[Sample]:
    samples: list[Sample] = []
    for name in TASKS:
        samples += samples_of_task(name)
    for ignore in (None, -1, 1):
        for kind in ("logits", "probabilities", "labels"):
            options = {"num_classes": CLASSES, "ignore_index": ignore}
            samples.append(Sample("MulticlassF1Score", options, multiclass(ignore, kind)))
            samples.append(Sample("MulticlassConfusionMatrix", options, multiclass(ignore, kind)))
            options = {"num_labels": LABELS, "ignore_index": ignore}
            samples.append(Sample("MultilabelF1Score", options, binary(ignore, kind, (ROWS, LABELS))))
            samples.append(Sample("BinaryF1Score", {"ignore_index": ignore}, binary(ignore, kind)))
    for average in ("micro", "macro", "weighted", "none"):
        for top_k in (1, 2):
            options = {"num_classes": CLASSES, "average": average, "top_k": top_k}
            samples.append(Sample("MulticlassAccuracy", options, multiclass()))
        options = {
            "num_classes": CLASSES,
            "average": average,
            "multidim_average": "samplewise",
            "capacity": 64,
        }
        samples.append(Sample("MulticlassRecall", options, multiclass(extra=(5,)), True))
        options.pop("capacity")
        samples.append(Sample("MulticlassRecall", options, multiclass(extra=(5,))))
    each: dict[str, Any] = {"multidim_average": "samplewise"}
    labels = {"num_labels": LABELS, **each}
    samples.append(Sample("BinaryRecall", each, binary(shape=(ROWS, 5))))
    for name in ("MultilabelRecall", "MultilabelExactMatch"):
        samples.append(Sample(name, labels, binary(kind="probabilities", shape=(ROWS, LABELS, 5))))
    samples.append(Sample("MulticlassExactMatch", {"num_classes": CLASSES, **each}, multiclass(extra=(5,))))
    samples += [Sample("BinaryCalibrationError", {"norm": norm}, binary()) for norm in ("l2", "max")]
    for weights in ("linear", "quadratic"):
        options = {"num_classes": CLASSES, "weights": weights}
        samples.append(Sample("MulticlassCohenKappa", options, multiclass()))
    samples.append(Sample("MulticlassAccuracy", {"average": "micro"}, multiclass(kind="labels")))
    for mode in ("crammer-singer", "one-vs-all"):
        options = {"num_classes": CLASSES, "squared": True, "multiclass_mode": mode}
        samples.append(Sample("MulticlassHingeLoss", options, multiclass()))
    return samples + samples_without_task()


def samples_without_task() -> list[Sample]:
    """Return samples of the metrics that are not a form of a task."""
    forms = {form.__name__ for task in TASKS for form in getattr(metrics, task).forms.values()}
    samples = []
    for name in sorted(set(metrics.classification.__all__) - forms - set(TASKS)):
        task = getattr(metrics, name).task
        sizes = {"multiclass": {"num_classes": CLASSES}, "multilabel": {"num_labels": LABELS}}.get(task, {})
        batch: Any = multiclass if task == "multiclass" else binary
        shape: dict[str, Any] = {"shape": (ROWS, LABELS)} if task == "multilabel" else {}
        for ignore in (None, -1):
            options = {**NEEDED.get(name, {}), **sizes, "ignore_index": ignore}
            samples.append(Sample(name, options, batch(ignore, **shape)))
    return samples


def samples_of_task(name: str) -> list[Sample]:
    waits = name in DATA_SIZED
    samples = []
    forms = getattr(metrics, name).forms
    more: list[dict[str, Any]] = [{"thresholds": None}, {"thresholds": 7}] if name in SCORED else [{}]
    for options in [{**NEEDED.get(name, {}), **extra} for extra in more]:
        wait = waits and options["thresholds"] is None
        for ignore in (None, -1):
            base = {**options, "ignore_index": ignore}
            if "binary" in forms:
                samples.append(Sample(f"Binary{name}", base, binary(ignore), wait))
            samples.append(
                Sample(f"Multiclass{name}", {**base, "num_classes": CLASSES}, multiclass(ignore), wait)
            )
            if "multilabel" in forms:
                shape = (ROWS, LABELS)
                options_ = {**base, "num_labels": LABELS}
                samples.append(Sample(f"Multilabel{name}", options_, binary(ignore, shape=shape), wait))
        task = {"task": "multiclass", "num_classes": CLASSES, **options}
        samples.append(Sample(name, task, multiclass(), wait))
    return samples


def other_samples() -> list[Sample]:
    samples = [Sample("MeanMetric", {"nan_strategy": nan}, values(6, nan=True)) for nan in ("ignore", 0.5)]
    samples += [Sample("MeanMetric", {}, batch) for batch in (values(), values(3, 2), weighted(4))]
    samples.append(Sample("MeanMetric", {"nan_strategy": "disable"}, values(4)))
    for name in ("SumMetric", "MaxMetric", "MinMetric"):
        samples += [
            Sample(name, {}, values(3)),
            Sample(name, {"nan_strategy": "ignore"}, values(6, nan=True)),
        ]
    samples.append(Sample("CatMetric", {"nan_strategy": "disable"}, values(3)))
    samples.append(Sample("CatMetric", {}, values(3), True))
    samples.append(Sample("CatMetric", {"nan_strategy": "error", "capacity": 64}, values(3), True))
    samples += [Sample(name, {"window": 3}, values(2)) for name in ("RunningMean", "RunningSum")]
    for name in metrics.regression.__all__:
        shape = (ROWS, 3) if name in ROWWISE else (ROWS,)
        samples.append(
            Sample(name, required_options(name), forecasts if name in ENSEMBLES else pairs(*shape))
        )
    for options in ({"variant": "a"}, {"variant": "c", "num_outputs": 3, "t_test": True}):
        shape = (ROWS, 3) if "num_outputs" in options else (ROWS,)
        samples.append(Sample("KendallRankCorrCoef", options, pairs(*shape)))
    for name in ("KLDivergence", "JensenShannonDivergence"):
        for how in ("mean", "sum", "none"):
            samples.append(Sample(name, {"reduction": how}, pairs(ROWS, 3)))
        samples.append(Sample(name, {"log_prob": True}, log_pairs))
    samples.append(Sample("CriticalSuccessIndex", {"threshold": 0.6, "keep_sequence_dim": 1}, pairs(ROWS, 3)))
    samples += [Sample("TweedieDevianceScore", {"power": p}, pairs(ROWS, 2)) for p in (-1, 1, 1.5, 2, 3)]
    for name in ("MeanSquaredError", "MeanAbsoluteError", "PearsonCorrCoef", "ConcordanceCorrCoef"):
        samples.append(Sample(name, {"num_outputs": 3}, pairs(ROWS, 3)))
    for name in ("R2Score", "ExplainedVariance"):
        samples.append(Sample(name, {"multioutput": "variance_weighted"}, pairs(ROWS, 3)))
    samples += [Sample("CosineSimilarity", {"reduction": how}, pairs(ROWS, 3)) for how in ("mean", "none")]
    samples.append(Sample("SpearmanCorrCoef", {"num_outputs": 3}, pairs(ROWS, 3)))
    samples += [
        Sample("SpearmanCorrCoef", {"num_outputs": n, "capacity": 64}, pairs(ROWS, n)) for n in (1, 2)
    ]
    for name in ("Perplexity", "TokenAccuracy"):
        samples += [Sample(name, {"ignore_index": ignore}, tokens(ignore)) for ignore in (None, -100)]
    samples.append(Sample("TokenAccuracy", {"top_k": 2}, tokens(None)))
    for form in ("one-hot", "index", "mixed"):
        options: dict[str, Any] = {"num_classes": CLASSES, "input_format": form}
        samples.append(Sample("MeanIoU", {**options, "per_class": True}, masks(form)))
        if form != "index":
            samples.append(Sample("MeanIoU", {"input_format": form}, masks(form)))
        samples.append(Sample("DiceScore", {**options, "include_background": False}, masks(form)))
        for weight in ("square", "simple", "linear"):
            more = {"weight_type": weight, "per_class": weight == "simple"}
            samples.append(Sample("GeneralizedDiceScore", {**options, **more}, masks(form)))
    return samples


SAMPLES = classification() + detection() + images() + other_samples() + retrieval() + text()
