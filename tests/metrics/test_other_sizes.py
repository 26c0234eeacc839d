"""The state of a metric with other arguments is refused in words, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics
from metrics.samples import SAMPLES, Sample

import gapless.metrics as metrics

COUNTS = ("num_classes", "num_labels", "num_outputs")
SIZED = [sample for sample in SAMPLES if any(name in sample.options for name in COUNTS)]


def larger(sample: Sample, home: Any = metrics) -> Any:
    """The metric of `sample` for two more classes, labels or outputs, with states in its `state_dict`."""
    sizes = {name: sample.options[name] + 2 for name in COUNTS if name in sample.options}
    metric = sample._replace(options={**sample.options, **sizes}).make(home)
    metric.persistent(True)
    return metric


def fed(sample: Sample, home: Any = metrics) -> Any:
    metric = sample.make(home)
    metric.update(*sample.data(1))
    metric.persistent(True)
    return metric


def refusal(load: Any, *args: Any) -> str:
    """What ``load(*args)`` is refused with; "" where it is not."""
    try:
        load(*args)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("sample", SIZED, ids=[sample.label for sample in SIZED])
def test_a_state_of_fewer_classes_is_refused_in_words_and_changes_nothing(sample):
    whole, other = fed(sample), larger(sample)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    words = {
        "load_state_dict": refusal(other.load_state_dict, whole.state_dict()),
        "merge a metric": refusal(other.merge_state, whole),
        "merge a dict": refusal(other.merge_state, whole.metric_state),
    }
    if any(words.values()):
        after = other.state_dict()
        assert before.keys() == after.keys()
        for name, value in before.items():
            torch.testing.assert_close(after[name], value, rtol=0, atol=0, equal_nan=True)
    for way, said in words.items():
        assert "must match the size" not in said, way
        assert "invalid for input" not in said, way


def test_the_words_name_both_numbers():
    sample = sample_of("MulticlassAccuracy")
    said = refusal(larger(sample).load_state_dict, fed(sample).state_dict())
    assert "table: the saved state is for 4 classes, but this metric is for 6 classes" in said


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("MulticlassAccuracy", {}, "4 classes, but this metric is for 6 classes"),
        ("MulticlassConfusionMatrix", {}, "4 classes, but this metric is for 6 classes"),
        ("MulticlassJaccardIndex", {}, "4 classes, but this metric is for 6 classes"),
        ("MultilabelAccuracy", {}, "3 labels, but this metric is for 5 labels"),
        ("MultilabelConfusionMatrix", {}, "3 labels, but this metric is for 5 labels"),
        (
            "MulticlassAUROC",
            {"thresholds": 5},
            "5 thresholds and 4 classes or labels, but this",
        ),
    ],
)
def test_a_checkpoint_of_torchmetrics_for_fewer_classes_is_refused_too(name, more, words):
    sample = sample_of(name)
    sample = sample._replace(options={**sample.options, **more})
    saved = fed(sample, torchmetrics.classification).state_dict()
    assert words in refusal(larger(sample).load_state_dict, saved)


def sample_of(name: str) -> Sample:
    return next(sample for sample in SAMPLES if sample.name == name)
