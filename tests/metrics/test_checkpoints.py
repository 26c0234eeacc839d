"""Checkpoints of TorchMetrics' metrics load into ours and ours into theirs, or it is said why not."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from metrics.samples import SAMPLES, Sample

import gapless
import gapless.metrics as metrics

ROOMS = ("classification", "image", "regression", "retrieval", "segmentation", "text")
HOMES = [torchmetrics, *(importlib.import_module(f"torchmetrics.{room}") for room in ROOMS)]
OURS = ("logits", "capacity")
"""Arguments that TorchMetrics has not."""


def theirs(sample: Sample) -> Any:
    home = next((home for home in HOMES if hasattr(home, sample.name)), None)
    if home is None or any(name in sample.options for name in OURS):
        return None
    return sample.make(home)


def averaged() -> Iterator[Sample]:
    """Averages of which TorchMetrics may keep something else."""
    several = [
        ("MultilabelAccuracy", {}),
        ("MultilabelJaccardIndex", {}),
        ("MulticlassROC", {"thresholds": None}),
    ]
    several += [("MultilabelAUROC", {"thresholds": number}) for number in (None, 5)]
    for name, more in several:
        sample = next(candidate for candidate in SAMPLES if candidate.name == name)
        yield sample._replace(options={**sample.options, **more, "average": "micro"})


def pairs() -> Iterator[Any]:
    for sample in [*SAMPLES, *averaged()]:
        their_metric = theirs(sample)
        if their_metric is not None:
            yield pytest.param(sample, their_metric, sample.make(), id=sample.label)


PAIRS = list(pairs())
NOT_READ = {
    "BinaryCalibrationError ConfidenceBins",  # bins here, rows there
    "MulticlassCalibrationError ConfidenceBins",
    "CriticalSuccessIndex EventCounts",  # what either has here, what each lacks there
    "CriticalSuccessIndex EventCountsPerPlace",
    "DiceScore SampleScores",  # sums here, every sample there
    "EditDistance DistanceRows",
    "JensenShannonDivergence Every",
    "KLDivergence Every",
    "MeanIoU SampleScores",  # the mean over classes is taken at the end here, sample by sample there
    "MultiScaleStructuralSimilarityIndexMeasure SimilarityRows",
    "BinaryRecall SamplewiseBinaryCounts",
    "MultilabelRecall SamplewiseBinaryCounts",
    "MulticlassRecall SamplewiseMulticlassCounts",
    "MulticlassExactMatch SampleMatchRows",
    "MultilabelExactMatch SampleMatchRows",
    "MulticlassROC micro",  # every class of a sample is one there
    "NormalizedRootMeanSquaredError Sum TargetScale",
    "PeakSignalNoiseRatio Every",
    "ROUGEScore RougeSums",
    "RunningMean Window",
    "RunningSum Window",
    "StructuralSimilarityIndexMeasure SimilarityRows",
    "WeightedMeanAbsolutePercentageError Sum Sum",
}
"""Metrics, and what they keep, of which TorchMetrics keeps something else."""
NOT_WRITTEN = {
    "ConcordanceCorrCoef Comoments",  # the largest deviations
    "CosineSimilarity Every",  # what it was given
    "CosineSimilarity Sum",
    "MulticlassJaccardIndex MulticlassCounts",  # pairs of classes
    "PearsonCorrCoef Comoments",
}
"""Those of which TorchMetrics keeps more."""


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-5, equal_nan=True, check_dtype=False)


def updated(metric: Any, sample: Sample, *seeds: int) -> None:
    for seed in seeds:
        metric.update(*sample.data(seed))


def parts_of(metric: Any) -> str:
    """The metric, and what it keeps; nothing for one that is by itself an exception among its like."""
    if getattr(metric, "per_class", False):
        return ""
    if isinstance(metric, metrics.MulticlassROC) and metric.average == "micro":
        return "MulticlassROC micro"
    return " ".join([type(metric).__name__, *(type(part).__name__ for part in metric.all_statistics())])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("sample", "their", "our"), PAIRS)
def test_what_theirs_saved_goes_on_in_ours(sample: Sample, their: Any, our: Any):
    their, our = their.clone(), our.clone()
    updated(their, sample, 0, 1)
    their.persistent(True)
    updated(our, sample, 7)  # which does not count
    if parts_of(our) in NOT_READ:
        with pytest.raises(RuntimeError, match="do not keep the same statistics"):
            our.load_state_dict(their.state_dict())
        return
    our.load_state_dict(their.state_dict())
    same(our.compute(), their.compute())
    updated(their, sample, 2)
    updated(our, sample, 2)
    same(our.compute(), their.compute())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("sample", "their", "our"), PAIRS)
def test_what_theirs_has_seen_is_added_to_ours(sample: Sample, their: Any, our: Any):
    their, our, whole = their.clone(), our.clone(), our.clone()
    updated(their, sample, 0)
    updated(our, sample, 1)
    updated(whole, sample, 1, 0)
    if parts_of(our) in NOT_READ:
        with pytest.raises((ValueError, RuntimeError)):
            our.merge_state(their.metric_state)
        return
    our.merge_state(their.metric_state)
    same(our.compute(), whole.compute())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("sample", "their", "our"), PAIRS)
def test_what_ours_saved_goes_on_in_theirs(sample: Sample, their: Any, our: Any):
    their, our = their.clone(), our.clone()
    updated(our, sample, 0, 1)
    if parts_of(our) in NOT_READ | NOT_WRITTEN:
        with pytest.raises(ValueError, match="do not keep the same statistics"):
            metrics.torchmetrics_states(our)
        return
    their.load_state_dict(metrics.torchmetrics_states(our))
    same(their.compute(), our.compute())
    updated(their, sample, 2)
    updated(our, sample, 2)
    same(their.compute(), our.compute())


def scores(home: Any, collection: Any) -> Any:
    several = {
        "accuracy": home.MulticlassAccuracy(4, average="micro"),
        "auroc": home.MulticlassAUROC(4),
        "matrix": home.MulticlassConfusionMatrix(4),
        "recall": home.MulticlassRecall(4),
    }
    metric_collection = collection(several)
    metric_collection.persistent(True)
    return metric_collection


class Model(torch.nn.Module):
    def __init__(self, metric: Any) -> None:
        super().__init__()
        self.net = torch.nn.Linear(6, 4)
        self.scores = metric


def test_a_models_checkpoint_goes_both_ways():
    """With a collection whose members share what they count, and weights beside it."""
    theirs = Model(scores(torchmetrics.classification, torchmetrics.MetricCollection))
    ours = Model(scores(metrics, metrics.MetricCollection))
    again = Model(scores(torchmetrics.classification, torchmetrics.MetricCollection))
    for _ in range(2):
        batch = theirs.net(torch.randn(12, 6)), torch.randint(0, 4, (12,))
        theirs.scores.update(*batch)
    ours.load_state_dict(theirs.state_dict())
    same(ours.scores.compute(), theirs.scores.compute())
    batch = theirs.net(torch.randn(12, 6)), torch.randint(0, 4, (12,))
    theirs.scores.update(*batch)
    ours.scores.update(*batch)
    same(ours.scores.compute(), theirs.scores.compute())
    again.load_state_dict(metrics.torchmetrics_states(ours))
    for metric in again.scores.values():
        metric._update_count = 1
    same(again.scores.compute(), theirs.scores.compute())
    assert torch.equal(again.net.weight, theirs.net.weight)


def test_on_a_gpu_nothing_waits():
    theirs = torchmetrics.classification.MulticlassRecall(4)
    theirs.persistent(True)
    theirs.update(torch.randn(12, 4), torch.randint(0, 4, (12,)))
    with gapless.emulate() as emulation:
        ours = metrics.MulticlassRecall(4).to("cuda")
        states = {name: value.to("cuda") for name, value in theirs.state_dict().items()}
        before = emulation.waits
        ours.load_state_dict(states)
        assert emulation.waits == before
        same(ours.compute().cpu(), theirs.compute())


def test_metrics_without_a_counterpart_are_refused():
    with pytest.raises(ValueError, match="do not keep the same statistics"):
        metrics.torchmetrics_states(metrics.TokenAccuracy())


KILLED = """
import os, sys, torch
import gapless.metrics as metrics
scores = metrics.MetricCollection([metrics.MulticlassAccuracy(3)])
scores.persistent()
torch.save(scores.state_dict(), "scores.pt")
class Half:
    def __reduce__(self):
        os._exit(9)
scores.update(torch.eye(3), torch.tensor([0, 1, 2]))
state_dict = scores.state_dict
scores.state_dict = lambda: {**state_dict(), "last": Half()}
"""


def test_the_documented_way_to_save_survives_being_killed(python, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    (saving,) = re.findall(r"```python\n(torch\.save\(scores.*?)```", page, re.DOTALL)
    assert python("-c", KILLED + saving).returncode == 9
    state = torch.load(tmp_path / "scores.pt")
    assert any(name.endswith(".table") for name in state)
    assert not any(value.any() for name, value in state.items() if name.endswith(".table"))
