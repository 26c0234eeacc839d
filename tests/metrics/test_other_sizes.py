"""The state of a metric with other arguments is refused in words, and changes nothing."""

from __future__ import annotations

import inspect
import io
import re
from typing import Any

import pytest
import torch
import torchmetrics
from metrics.samples import SAMPLES, Sample

import gapless.metrics as metrics

COUNTS = ("num_classes", "num_labels", "num_outputs")
NUMBER = r"\d+ (class(es)?|labels?|outputs?)( (and|or) \d+ thresholds)?"
WORDS = re.compile(rf"the saved state is for {NUMBER}, but this metric is for {NUMBER}: make it with")
"""What a refusal says: what was saved, and what the metric is for."""
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
        "merge a metric saved whole": refusal(other.merge_state, saved_whole(whole)),
        "merge a dict": refusal(other.merge_state, whole.metric_state),
    }
    if form(sample.make()) == form(larger(sample)):
        assert not any(words.values())
        return
    after = other.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=0, equal_nan=True)
    for way, said in words.items():
        assert WORDS.search(said), (way, said)
        assert said.count("\n") <= 1, way
    rows = {name: value for name, value in before.items() if value.numel()}
    backwards = refusal(whole.load_state_dict, rows, False)
    assert not backwards or WORDS.search(backwards)


def saved_whole(metric: Any) -> Any:
    file = io.BytesIO()
    torch.save(metric, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def form(metric: Any) -> list[Any]:
    """The shapes of the states of `metric`: where they are another's, nothing depends on the number."""
    return [
        (name, {slot: each.shape for slot, each in part.slots.items()}, getattr(part, "columns", None))
        for name, part in metric.statistics()
    ]


def whole_numbers(sample: Sample) -> dict[str, int]:
    """The arguments of the metric of `sample` that are whole numbers, with their values."""
    defaults = inspect.signature(getattr(metrics, sample.name)).parameters
    values = {name: parameter.default for name, parameter in defaults.items()} | sample.options
    return {name: value for name, value in values.items() if type(value) is int}


@pytest.mark.parametrize("name", sorted({sample.name for sample in SAMPLES}))
def test_any_argument_that_changes_the_size_of_a_state_is_refused_in_words(name):
    for sample in [sample for sample in SAMPLES if sample.name == name]:
        own = fed(sample)
        for argument, value in whole_numbers(sample).items():
            try:
                other = sample._replace(options={**sample.options, argument: value + 2}).make()
            except (ValueError, TypeError):  # it is no size, or has few values
                continue
            own_shapes, shapes = (
                [slots for _, slots, _ in form(metric)] for metric in (sample.make(), other)
            )
            if own_shapes != shapes and "capacity" not in argument:
                said = refusal(other.load_state_dict, own.state_dict())
                assert re.search(r"is for \d+ [a-z]", said), (argument, said)
                assert "is for shape" not in said, argument


WRAPPED = {
    "outputs": lambda n: metrics.MultioutputWrapper(metrics.MeanSquaredError(), n),
    "samples": lambda n: metrics.BootStrapper(metrics.MeanSquaredError(), num_bootstraps=n),
    "updates of 3 classes": lambda n: metrics.Running(metrics.MulticlassAccuracy(num_classes=3), window=n),
    "updates": lambda n: metrics.RunningMean(window=n),
    "classes": lambda n: metrics.ClasswiseWrapper(metrics.MulticlassAccuracy(num_classes=n, average=None)),
    "classes, but": lambda n: metrics.MinMaxMetric(metrics.MulticlassAUROC(num_classes=n, thresholds=4)),
}
"""Wrappers of different sizes, by what there is more of."""


@pytest.mark.parametrize("words", WRAPPED)
def test_wrappers_say_it_too_and_merge_nothing(words):
    small, large = (WRAPPED[words](number) for number in (3, 4))
    for metric in (small, large):
        metric.persistent(True)
    for saved, metric, number in ((small, large, 3), (large, small, 4)):
        state = metric.state_dict()
        for said in (
            refusal(metric.load_state_dict, saved.state_dict()),
            refusal(metric.merge_state, saved),
        ):
            assert f"the saved state is for {number} {words}" in said
        after = metric.state_dict()
        assert all(torch.equal(after[name], value) for name, value in state.items())
        assert after.keys() == state.keys()


def test_a_collection_says_it_for_each_member():
    small, large = (
        metrics.MetricCollection(
            {
                "right": metrics.MulticlassAccuracy(num_classes=number),
                "table": metrics.MulticlassConfusionMatrix(num_classes=number),
                "error": metrics.MeanSquaredError(num_outputs=number),
            }
        )
        for number in (3, 5)
    )
    for collection in (small, large):
        collection.persistent(True)
    said = refusal(large.load_state_dict, small.state_dict())
    for name, noun in (("right", "classes"), ("table", "classes"), ("error", "outputs")):
        assert re.search(rf"{name}\.\w+: .*is for 3 {noun}, but this metric is for 5 {noun}", said), name


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
