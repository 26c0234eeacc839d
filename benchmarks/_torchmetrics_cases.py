"""Every metric TorchMetrics exports, built in its usual ways, with inputs for an update."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torchmetrics
from torch import Tensor, nn
from torchmetrics import (
    MetricCollection,
    aggregation,
    audio,
    classification,
    clustering,
    detection,
    image,
    multimodal,
    regression,
    retrieval,
    segmentation,
    shape,
    text,
    wrappers,
)

N, C, L = 12, 5, 4
"""Batch size, classes, labels."""


class Make:
    """Random inputs on one device, repeatable by seed."""

    def __init__(self, seed: int, device: str) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.device = device

    def score(self, *shape: int) -> Tensor:
        """Return probabilities of `shape` in [0, 1)."""
        return torch.rand(shape, generator=self.generator).to(self.device)

    def real(self, *shape: int) -> Tensor:
        """Return standard normal floats of `shape`."""
        return torch.randn(shape, generator=self.generator).to(self.device)

    def label(self, high: int, *shape: int) -> Tensor:
        """Return integers of `shape` in [0, high)."""
        return torch.randint(high, shape, generator=self.generator).to(self.device)

    def put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)


Batch = Callable[[Make], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """One way to build a metric, and the inputs of one update.

    `best` are the options with which it waits least.
    """

    name: str
    build: Callable[..., Any]
    batch: Batch
    best: dict[str, Any] = field(default_factory=dict)


def binary(m: Make) -> tuple[Any, ...]:
    return m.score(N), m.label(2, N)


def multiclass(m: Make) -> tuple[Any, ...]:
    return m.real(N, C), m.label(C, N)


def multilabel(m: Make) -> tuple[Any, ...]:
    return m.score(N, L), m.label(2, N, L)


INPUTS: dict[str, Batch] = {"Binary": binary, "Multiclass": multiclass, "Multilabel": multilabel}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "Binary": {},
    "Multiclass": {"num_classes": C},
    "Multilabel": {"num_labels": L},
}
SPECIAL: dict[str, tuple[dict[str, Any], Batch]] = {
    "BinaryFairness": ({"num_groups": 2}, lambda m: (m.score(N), m.label(2, N), m.put(torch.arange(N) % 2))),
    "BinaryGroupStatRates": (
        {"num_groups": 2},
        lambda m: (m.score(N), m.label(2, N), m.put(torch.arange(N) % 2)),
    ),
    "MulticlassExactMatch": ({}, lambda m: (m.label(C, N, 3), m.label(C, N, 3))),
}
NEEDED = {
    "FBetaScore": {"beta": 2.0},
    "PrecisionAtFixedRecall": {"min_recall": 0.5},
    "RecallAtFixedPrecision": {"min_precision": 0.5},
    "SensitivityAtSpecificity": {"min_specificity": 0.5},
    "SpecificityAtSensitivity": {"min_sensitivity": 0.5},
}
CURVES = [
    "AUROC",
    "AveragePrecision",
    "EER",
    "LogAUC",
    "PrecisionRecallCurve",
    "ROC",
    "PrecisionAtFixedRecall",
    "RecallAtFixedPrecision",
    "SensitivityAtSpecificity",
    "SpecificityAtSensitivity",
]


def classification_cases() -> Iterator[Case]:
    """Yield every class of `torchmetrics.classification`, with defaults and in common variants."""
    for name in sorted(classification.__all__):
        task = next((task for task in INPUTS if name.startswith(task)), None)
        if task is None:
            continue
        kind, cls = name[len(task) :], getattr(classification, name)
        more, batch = SPECIAL.get(name, ({}, INPUTS[task]))
        build = partial(cls, **ARGUMENTS[task], **NEEDED.get(kind, {}), **more)
        best = {"validate_args": False}
        yield Case(name, build, batch, best)
        if kind in CURVES:
            yield Case(f"{name}, thresholds=20", partial(build, thresholds=20), batch, best)
        if "ignore_index" in inspect.signature(cls.__init__).parameters and name not in SPECIAL:
            yield Case(f"{name}, ignore_index=0", partial(build, ignore_index=0), batch, best)
            if kind in CURVES:
                yield Case(
                    f"{name}, ignore_index=0, thresholds=20",
                    partial(build, ignore_index=0, thresholds=20),
                    batch,
                    best,
                )
        if task == "Multiclass" and "average" in inspect.signature(cls.__init__).parameters:
            yield from multiclass_variants(name, build, "top_k" in inspect.signature(cls.__init__).parameters)


def multiclass_variants(name: str, build: Callable[..., Any], stat_scores: bool) -> Iterator[Case]:
    best = {"validate_args": False}
    if stat_scores:
        labels: Batch = lambda m: (m.label(C, N), m.label(C, N))  # noqa: E731
        yield Case(f"{name}, int preds", build, labels, best)
        yield Case(f"{name}, micro", partial(build, average="micro"), multiclass, best)
        yield Case(
            f"{name}, micro, ignore_index=0",
            partial(build, average="micro", ignore_index=0),
            multiclass,
            best,
        )
        yield Case(f"{name}, top_k=2", partial(build, top_k=2), multiclass, best)
        yield Case(
            f"{name}, samplewise",
            partial(build, multidim_average="samplewise"),
            lambda m: (m.label(C, N, 3), m.label(C, N, 3)),
            best,
        )
    if not name.endswith(("EER", "LogAUC", "Curve", "ROC")):
        yield Case(f"{name}, weighted", partial(build, average="weighted"), multiclass, best)


def aggregation_cases() -> Iterator[Case]:
    best = {"nan_strategy": "disable"}
    values: Batch = lambda m: (m.real(N),)  # noqa: E731
    for name in (
        "CatMetric",
        "MaxMetric",
        "MeanMetric",
        "MinMetric",
        "SumMetric",
        "RunningMean",
        "RunningSum",
    ):
        cls = getattr(aggregation, name)
        yield Case(name, cls, values, best)
        yield Case(f"{name}, float", cls, lambda m: (0.5,), best)
        for strategy in ("error", "ignore", 0.0):
            if name != "MeanMetric" and strategy != "error":
                continue
            yield Case(
                f"{name}, nan_strategy={strategy!r}", partial(cls, nan_strategy=strategy), values, best
            )
    yield Case("MeanMetric, float weight", aggregation.MeanMetric, lambda m: (m.real(N), 2.0), {})
    yield Case("MeanMetric, weights", aggregation.MeanMetric, lambda m: (m.real(N), m.score(N)), {})


def pair(*shape: int) -> Batch:
    return lambda m: (m.score(*shape), m.score(*shape))


def regression_cases() -> Iterator[Case]:
    same = (
        "ConcordanceCorrCoef ExplainedVariance LogCoshError MeanAbsoluteError MeanAbsolutePercentageError "
        "MeanSquaredError MeanSquaredLogError NormalizedRootMeanSquaredError PearsonCorrCoef R2Score "
        "RelativeSquaredError SpearmanCorrCoef KendallRankCorrCoef SymmetricMeanAbsolutePercentageError "
        "TweedieDevianceScore WeightedMeanAbsolutePercentageError"
    )
    for name in same.split():
        yield Case(name, getattr(regression, name), pair(N))
    yield Case("R2Score, 2 outputs", regression.R2Score, pair(N, 2))
    yield Case("PearsonCorrCoef, 2 outputs", partial(regression.PearsonCorrCoef, num_outputs=2), pair(N, 2))
    yield Case("MeanSquaredError, 2 outputs", partial(regression.MeanSquaredError, num_outputs=2), pair(N, 2))
    yield Case("MinkowskiDistance", partial(regression.MinkowskiDistance, p=3), pair(N))
    yield Case("CosineSimilarity", regression.CosineSimilarity, pair(N, 3))
    yield Case("CriticalSuccessIndex", partial(regression.CriticalSuccessIndex, 0.5), pair(N))
    yield Case("ContinuousRankedProbabilityScore", regression.ContinuousRankedProbabilityScore, crps)
    distributions: Batch = lambda m: (m.real(N, C).softmax(-1), m.real(N, C).softmax(-1))  # noqa: E731
    yield Case("KLDivergence", regression.KLDivergence, distributions)
    yield Case("JensenShannonDivergence", regression.JensenShannonDivergence, distributions)


def crps(m: Make) -> tuple[Any, ...]:
    return m.score(N, 3), m.score(N)


def segmentation_cases() -> Iterator[Case]:
    one_hot: Batch = lambda m: (m.label(2, 3, C, 8, 8), m.label(2, 3, C, 8, 8))  # noqa: E731
    index: Batch = lambda m: (m.label(C, 3, 8, 8), m.label(C, 3, 8, 8))  # noqa: E731
    for name in ("DiceScore", "GeneralizedDiceScore", "HausdorffDistance", "MeanIoU"):
        build = partial(getattr(segmentation, name), num_classes=C)
        yield Case(name, build, one_hot)
        yield Case(f"{name}, index", partial(build, input_format="index"), index)


def retrieval_cases() -> Iterator[Case]:
    batch: Batch = lambda m: (m.score(N), m.label(2, N), m.label(3, N))  # noqa: E731
    for name in sorted(retrieval.__all__):
        more = {"min_precision": 0.5} if name == "RetrievalRecallAtFixedPrecision" else {}
        yield Case(name, partial(getattr(retrieval, name), **more), batch)


WORDS: Batch = lambda m: (["the cat sat on the mat"], ["the cat is on the mat"])  # noqa: E731
MANY: Batch = lambda m: (["the cat sat on the mat"], [["the cat is on the mat", "a cat sat"]])  # noqa: E731


def text_cases() -> Iterator[Case]:
    for name in ("CharErrorRate", "EditDistance", "MatchErrorRate", "WordErrorRate", "WordInfoLost"):
        yield Case(name, getattr(text, name), WORDS)
    yield Case("WordInfoPreserved", text.WordInfoPreserved, WORDS)
    for name in ("BLEUScore", "CHRFScore", "ExtendedEditDistance", "SacreBLEUScore", "TranslationEditRate"):
        yield Case(name, getattr(text, name), MANY)
    yield Case("ROUGEScore, rouge1", partial(text.ROUGEScore, rouge_keys="rouge1"), WORDS)
    yield Case("SQuAD", text.SQuAD, squad)
    tokens: Batch = lambda m: (m.real(2, N, C), m.label(C, 2, N))  # noqa: E731
    yield Case("Perplexity", text.Perplexity, tokens)
    yield Case("Perplexity, ignore_index=0", partial(text.Perplexity, ignore_index=0), tokens)


def squad(m: Make) -> tuple[Any, ...]:
    answers = {"answer_start": [1], "text": ["a cat"]}
    return [{"prediction_text": "a cat", "id": "1"}], [{"answers": answers, "id": "1"}]


class Features(nn.Module):
    """A stand-in feature extractor: images (N, 3, H, W) to (N, 8)."""

    num_features = 8

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mean((2, 3)).repeat(1, 3)[:, :8]


def image_cases() -> Iterator[Case]:
    same = (
        "ErrorRelativeGlobalDimensionlessSynthesis PeakSignalNoiseRatio RelativeAverageSpectralError "
        "RootMeanSquaredErrorUsingSlidingWindow SpatialCorrelationCoefficient SpectralAngleMapper "
        "SpectralDistortionIndex StructuralSimilarityIndexMeasure UniversalImageQualityIndex"
    )
    for name in same.split():
        more = (
            {"data_range": 1.0}
            if name in ("PeakSignalNoiseRatio", "StructuralSimilarityIndexMeasure")
            else {}
        )
        yield Case(name, partial(getattr(image, name), **more), pair(2, 3, 16, 16))
    yield Case(
        "StructuralSimilarityIndexMeasure, no range",
        image.StructuralSimilarityIndexMeasure,
        pair(2, 3, 16, 16),
    )
    blocks = partial(image.PeakSignalNoiseRatioWithBlockedEffect, data_range=1.0)
    yield Case("PeakSignalNoiseRatioWithBlockedEffect", blocks, pair(2, 1, 16, 16))
    yield Case("TotalVariation", image.TotalVariation, lambda m: (m.score(2, 3, 16, 16),))
    scales = partial(
        image.MultiScaleStructuralSimilarityIndexMeasure, data_range=1.0, kernel_size=3, betas=(0.5, 0.5)
    )
    yield Case("MultiScaleStructuralSimilarityIndexMeasure", scales, pair(2, 3, 32, 32))
    yield Case("VisualInformationFidelity", image.VisualInformationFidelity, pair(1, 1, 48, 48))
    pan: Batch = lambda m: (  # noqa: E731
        m.score(2, 3, 16, 16),
        {"ms": m.score(2, 3, 8, 8), "pan": m.score(2, 3, 16, 16), "pan_lr": m.score(2, 3, 8, 8)},
    )
    yield Case("SpatialDistortionIndex", image.SpatialDistortionIndex, pan)
    yield Case("QualityWithNoReference", image.QualityWithNoReference, pan)
    mifid = partial(image.MemorizationInformedFrechetInceptionDistance, feature=Features())
    yield Case(
        "MemorizationInformedFrechetInceptionDistance",
        partial(in_turn, mifid, ({"real": True}, {"real": False})),
        lambda m: (m.score(N, 3, 8, 8),),
    )


def in_turn(build: Callable[[], Any], steps: tuple[dict[str, Any], ...]) -> Any:
    """Return a metric whose updates take these keywords in turn (see `update`)."""
    metric = build()
    metric._case_keywords = steps
    return metric


def audio_cases() -> Iterator[Case]:
    for name in ("ScaleInvariantSignalDistortionRatio", "ScaleInvariantSignalNoiseRatio", "SignalNoiseRatio"):
        yield Case(name, getattr(audio, name), pair(2, 400))
    yield Case("SignalDistortionRatio", partial(audio.SignalDistortionRatio, filter_length=32), pair(2, 400))
    yield Case(
        "SourceAggregatedSignalDistortionRatio", audio.SourceAggregatedSignalDistortionRatio, pair(2, 2, 400)
    )
    yield Case(
        "ComplexScaleInvariantSignalNoiseRatio", audio.ComplexScaleInvariantSignalNoiseRatio, pair(1, 9, 5, 2)
    )
    from torchmetrics.functional.audio import scale_invariant_signal_noise_ratio

    pit = importlib.import_module("torchmetrics.functional.audio.pit")

    def permuted() -> Any:
        pit._ps_dict.clear()  # drop tensors kept from an earlier emulated device
        return audio.PermutationInvariantTraining(scale_invariant_signal_noise_ratio, eval_func="max")

    yield Case("PermutationInvariantTraining", permuted, pair(2, 2, 400))


def clustering_cases() -> Iterator[Case]:
    labels: Batch = lambda m: (m.label(3, N), m.label(3, N))  # noqa: E731
    features: Batch = lambda m: (m.real(N, 4), m.label(3, N))  # noqa: E731
    for name in sorted(set(clustering.__all__) - {"ClusterAccuracy"}):  # needs another package
        more = {"num_classes": 3} if name == "ClusterAccuracy" else {}
        inner = name in ("CalinskiHarabaszScore", "DaviesBouldinScore", "DunnIndex")
        yield Case(name, partial(getattr(clustering, name), **more), features if inner else labels)


def other_cases() -> Iterator[Case]:
    nominal: Batch = lambda m: (m.label(C, 40), m.label(C, 40))  # noqa: E731
    for name in ("CramersV", "PearsonsContingencyCoefficient", "TheilsU", "TschuprowsT"):
        yield Case(name, partial(getattr(torchmetrics, name), num_classes=C), nominal)
    yield Case("FleissKappa", partial(torchmetrics.FleissKappa, mode="counts"), lambda m: (m.label(C, N, C),))
    panoptic: Batch = lambda m: (m.label(2, 1, 6, 6, 2), m.label(2, 1, 6, 6, 2))  # noqa: E731
    for name in ("ModifiedPanopticQuality", "PanopticQuality"):
        yield Case(name, partial(getattr(detection, name), things={0}, stuffs={1}), panoptic)
    yield Case("ProcrustesDisparity", shape.ProcrustesDisparity, pair(2, 10, 3))
    lips = partial(multimodal.LipVertexError, mouth_map=[0, 1, 2])
    yield Case("LipVertexError", lips, pair(6, 10, 3))


def wrapper_cases() -> Iterator[Case]:
    accuracy = partial(classification.MulticlassAccuracy, num_classes=C)
    mean = aggregation.MeanMetric
    yield Case("BootStrapper", lambda: wrappers.BootStrapper(accuracy(), num_bootstraps=3), multiclass)
    yield Case("ClasswiseWrapper", lambda: wrappers.ClasswiseWrapper(accuracy(average=None)), multiclass)
    yield Case("MinMaxMetric", lambda: wrappers.MinMaxMetric(accuracy()), multiclass)
    outputs = partial(wrappers.MultioutputWrapper, regression.R2Score(), num_outputs=2)
    yield Case("MultioutputWrapper", outputs, pair(N, 2))
    tasks: Batch = lambda m: ({"a": m.score(N), "b": m.score(N)}, {"a": m.label(2, N), "b": m.score(N)})  # noqa: E731
    yield Case("MultitaskWrapper", multitask, tasks)
    yield Case("Running", lambda: wrappers.Running(accuracy(), window=2), multiclass)
    yield Case("Compositional", lambda: accuracy() + 2.0 * accuracy(average="micro"), multiclass)
    yield Case(
        "LambdaInputTransformer",
        lambda: wrappers.LambdaInputTransformer(
            classification.BinaryAccuracy(), transform_pred=torch.sigmoid
        ),
        binary,
    )
    yield Case(
        "BinaryTargetTransformer",
        lambda: wrappers.BinaryTargetTransformer(classification.BinaryAccuracy(), threshold=0.5),
        lambda m: (m.score(N), m.score(N)),
    )
    yield Case(
        "MetricCollection of accuracy, precision, recall, F1",
        collection,
        multiclass,
        {"validate_args": False},
    )
    nested = lambda: MetricCollection({"a": MetricCollection([mean()]), "b": aggregation.SumMetric()})  # noqa: E731
    yield Case("MetricCollection, nested", nested, lambda m: (m.real(N),))


def multitask() -> Any:
    return wrappers.MultitaskWrapper(
        {"a": classification.BinaryAccuracy(), "b": regression.MeanSquaredError()}
    )


def collection(**options: Any) -> MetricCollection:
    names = ("MulticlassAccuracy", "MulticlassPrecision", "MulticlassRecall", "MulticlassF1Score")
    return MetricCollection([getattr(classification, name)(num_classes=C, **options) for name in names])


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "aggregation": aggregation_cases,
    "classification": classification_cases,
    "regression": regression_cases,
    "segmentation": segmentation_cases,
    "retrieval": retrieval_cases,
    "text": text_cases,
    "image": image_cases,
    "audio": audio_cases,
    "clustering": clustering_cases,
    "nominal, detection, shape, multimodal": other_cases,
    "wrappers": wrapper_cases,
}


def cases() -> Iterator[Case]:
    """Yield every case of every family, in order."""
    for family in FAMILIES.values():
        yield from family()


def update(metric: Any, batch: tuple[Any, ...], step: int = 0) -> None:
    """Run one update, with the keywords of this step."""
    keywords = getattr(metric, "_case_keywords", ())
    metric.update(*batch, **(keywords[step % len(keywords)] if keywords else {}))


def to_host(value: Any) -> Any:
    """Return `value` with its tensors on the host."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: to_host(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_host(item) for item in value]
    return value
