"""Classification as in TorchMetrics: messages, warnings, precision, edge cases."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchmetrics
import torchmetrics.functional.classification as reference
from hypothesis import example, given, settings
from hypothesis import strategies as st
from metrics import samples
from metrics.test_drop_in import NAMES, batch, needed_options, outcome, theirs
from torch import Tensor

import gapless
import gapless.metrics as metrics
import gapless.metrics.functional as functional

CLASSES = 4
CURVES = [name for name in NAMES if name.endswith(samples.SCORED) and "Ranking" not in name]
SCORED = [*CURVES, *(name for name in NAMES if re.search("Calibration|Hinge|Coverage|Ranking", name))]
"""Metrics that take scores only, no labels."""


def data(name: str, seed: int = 0) -> list[Tensor]:
    return batch(name, torch.Generator().manual_seed(seed), rows=40)


def collect_warnings(call: Callable[[], Any]) -> set[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return {str(warning.message) for warning in caught}


# Words.


@pytest.mark.parametrize(
    "name", ["multiclass_stat_scores", "multiclass_confusion_matrix", "multiclass_f1_score"]
)
@pytest.mark.parametrize("where", ["preds", "target"])
@pytest.mark.parametrize("ignore_index", [None, 1, -1])
def test_too_many_classes_are_refused_in_the_same_words(name: str, where: str, ignore_index: int | None):
    classes, more = torch.arange(CLASSES).repeat(2), torch.arange(CLASSES + 2).repeat(2)[: 2 * CLASSES]
    arguments = {"preds": classes, "target": classes, where: more}
    options = {"num_classes": CLASSES, "ignore_index": ignore_index}
    expected = outcome(lambda: getattr(reference, name)(**arguments, **options))
    actual = outcome(lambda: getattr(functional, name)(**arguments, **options))
    assert type(actual) is type(expected) is RuntimeError
    assert str(expected).rpartition(" in `")[0] in str(actual)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("Multiclass")])
def test_labels_that_are_neither_0_nor_1_are_named(name: str):
    preds, target = data(name)
    for kind in ("preds", "target"):
        if kind == "preds" and name in SCORED:
            continue
        labels = [(preds > 0.5).long(), target]
        labels[kind == "target"] = labels[kind == "target"].clone().index_fill(0, torch.tensor([0]), 3)
        batch = [preds, labels[1]] if name in SCORED else labels
        metric = getattr(metrics, name)(**needed_options(name))
        with pytest.raises(RuntimeError, match=rf"^{name}: Detected the following values in `{kind}`: .*3"):
            metric.update(*batch)


def test_scores_against_too_many_classes():
    for name in ("multiclass_auroc", "multiclass_roc", "multiclass_average_precision"):
        batch = torch.rand(6, CLASSES).softmax(1), torch.arange(6)
        expected = outcome(lambda name=name, batch=batch: getattr(reference, name)(*batch, CLASSES))
        actual = outcome(lambda name=name, batch=batch: getattr(functional, name)(*batch, CLASSES))
        assert str(actual).endswith(str(expected))
        assert type(actual) is type(expected) is RuntimeError


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_described(name: str):
    metric = getattr(metrics, name)
    described = inspect.getdoc(metric)
    assert described is not None
    for argument in list(inspect.signature(metric.__init__).parameters)[1:-1]:
        assert described.count(f"\n    {argument}: ") == 1, argument
    assert "\n    process_group: " not in described


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [(), (2,)])
def test_what_update_takes_is_as_described(name: str, more: tuple[int, ...]):
    described = (inspect.getdoc(getattr(metrics, name)) or "").replace("\n", " ")
    takes = described.partition("``update`` takes ")[2].partition(". ")[0]
    assert "targets" in takes
    torch.manual_seed(0)
    task = getattr(metrics, name).task
    options = needed_options(name)
    columns = options.get("num_labels", options.get("num_classes", 1))
    shape = (40, columns, *more) if task == "multilabel" else (40, *more)
    most = columns if task == "multiclass" else 2
    labels, target = (torch.randint(most, shape) for _ in range(2))
    scores = torch.rand((40, columns, *more) if task == "multiclass" else shape)
    metric = getattr(metrics, name)(**options)
    metric.update(scores, target)
    if "labels" in takes:
        metric.update(labels, target)
    else:
        with pytest.raises((ValueError, RuntimeError)):
            metric.update(labels, target)
    metric.compute()


# Warnings.


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("thresholds", [None, 5])
@pytest.mark.parametrize("only", [0, 1])
def test_classes_that_do_not_occur_are_warned_of(name: str, thresholds: int | None, only: int):
    preds, target = data(name)
    if only == 0 and name.startswith("Multiclass") and "Precision" in name:
        only = 2  # There class 0 alone is taken for no positives.
    alone = torch.full_like(target, only)
    options = {**needed_options(name), "thresholds": thresholds}
    actual, expected = (
        collect_warnings(lambda metric=metric: metric(preds, alone))
        for metric in (getattr(metrics, name)(**options), theirs(name)(**options))
    )
    assert actual == expected


def test_warnings_point_to_the_line_that_asks():
    preds, target = torch.rand(8), torch.zeros(8, dtype=torch.long)
    metric = metrics.BinaryAUROC()
    metric.update(preds, target)
    collection = metrics.MetricCollection(metrics.BinaryROC())
    for ask in (
        metric.compute,
        lambda: metric(preds, target),
        lambda: collection(preds, target),
        lambda: functional.binary_auroc(preds, target),
    ):
        with pytest.warns(UserWarning, match="No positive samples") as caught:
            ask()
        assert {warning.filename for warning in caught} == {__file__}


def test_warnings_are_of_the_cpu_only():
    with gapless.emulate() as emulator:
        scores = torch.rand(8, 3, device="cuda")
        target = torch.ones(8, dtype=torch.long, device="cuda")
        before = emulator.waits
        for metric in (
            metrics.MulticlassAUROC(3),
            metrics.MulticlassAveragePrecision(3),
            metrics.MulticlassConfusionMatrix(3, normalize="true"),
        ):
            assert not collect_warnings(lambda metric=metric: metric.to("cuda")(scores, target))
        assert emulator.waits == before


@pytest.mark.parametrize("normalize", ["true", "pred", "all", None])
@pytest.mark.parametrize("form", ["Binary", "Multiclass", "Multilabel"])
def test_empty_rows_of_a_normalized_matrix_are_warned_of(form: str, normalize: str | None):
    name = f"{form}ConfusionMatrix"
    preds, target = data(name)
    for truth in (target, torch.zeros_like(target)):
        options = {**needed_options(name), "normalize": normalize}
        actual, expected = (
            collect_warnings(lambda metric=metric, truth=truth: metric(preds, truth))
            for metric in (getattr(metrics, name)(**options), theirs(name)(**options))
        )
        assert actual == expected


# Scores.


@pytest.mark.filterwarnings("ignore:No positive samples")
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    ties=st.booleans(),
    form=st.sampled_from(["binary", "multiclass", "multilabel"]),
)
@example(seed=244660, ties=False, form="multiclass")  # a class that no sample has: its recall is no number
def test_thresholds_of_the_whole_curve_give_the_whole_curve(seed: int, ties: bool, form: str):
    preds, target = data(form.capitalize(), seed)
    preds = (preds * 6 + 1).round() / 8 if ties else preds
    options = needed_options(form.capitalize())
    for name in ("roc", "precision_recall_curve"):
        function = getattr(functional, f"{form}_{name}")
        whole = function(preds, target, **options)
        whole = tuple([values] for values in whole) if form == "binary" else whole
        for i, thresholds in enumerate(whole[2]):
            ascending = thresholds.flip(0) if name == "roc" else thresholds
            for argument in (ascending, ascending.tolist()):
                part = function(preds, target, thresholds=argument, **options)
                rows = part[:2] if form == "binary" else (part[0][i], part[1][i])
                for values, expected in zip((*rows, part[2]), (row[i] for row in whole), strict=True):
                    torch.testing.assert_close(values, expected, equal_nan=True)


def test_double_precision_is_kept():
    scores = torch.tensor([0.5, 0.5 + 1e-12, 0.5 - 1e-12, 0.2], dtype=torch.float64)
    target = torch.tensor([1, 0, 1, 0])
    for metric, function in (
        (metrics.BinaryROC(), reference.binary_roc),
        (metrics.BinaryPrecisionRecallCurve(), reference.binary_precision_recall_curve),
    ):
        metric.update(scores[:2], target[:2])
        metric.update(scores[2:], target[2:])
        for values, expected in zip(metric.compute(), function(scores, target), strict=True):
            torch.testing.assert_close(values, expected, rtol=0, atol=0)
    assert metrics.BinaryAUROC()(scores, target).item() == 0.5


@pytest.mark.parametrize("bins", [10, 99, 100])
def test_calibration_of_values_on_the_edges_of_bins(bins: int):
    scores = torch.tensor([0.9, 0.9, 0.8, 0.8, 0.01, 0.33, 0.34, 0.99, 0.61, 0.29])
    target = torch.tensor([1, 0, 1, 0, 1, 0, 1, 0, 0, 1])
    for dtype in (torch.float32, torch.float64):
        actual, expected = (
            home.binary_calibration_error(scores.to(dtype), target, n_bins=bins)
            for home in (functional, reference)
        )
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_half_precision_are_scores_of_single_precision(name: str, dtype: torch.dtype):
    preds, target = data(name)
    options = needed_options(name)
    metric, same = getattr(metrics, name)(**options), getattr(metrics, name)(**options)
    actual, expected = metric(preds.to(dtype), target), same(preds.to(dtype).float(), target)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ignore_index", [-1, -100])
def test_scores_of_what_is_ignored_do_not_matter(name: str, ignore_index: int):
    preds, target = data(name)
    target = target.masked_fill(
        torch.rand(target.shape, generator=torch.Generator().manual_seed(1)) < 0.3, ignore_index
    )
    options = {**needed_options(name), "ignore_index": ignore_index}
    ignored = (
        (target == ignore_index).unsqueeze(1) if name.startswith("Multiclass") else target == ignore_index
    )
    for strange in (-50.0, 7.0):
        metric, same = getattr(metrics, name)(**options), getattr(metrics, name)(**options)
        actual, expected = metric(preds.masked_fill(ignored, strange), target), same(preds, target)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


# Labels.


@pytest.mark.parametrize(
    "base", ["ConfusionMatrix", "CohenKappa", "MatthewsCorrCoef", "JaccardIndex", "Accuracy"]
)
def test_one_prediction_without_dimensions(base: str):
    metric = getattr(metrics, f"Binary{base}")()
    for preds, target in ((0.7, 1), (0.2, 1), (0.1, 0)):
        metric.update(torch.tensor(preds), torch.tensor(target))
    same = getattr(metrics, f"Binary{base}")()
    same.update(torch.tensor([0.7, 0.2, 0.1]), torch.tensor([1, 1, 0]))
    torch.testing.assert_close(metric.compute(), same.compute())


def test_true_and_false_with_a_target_to_ignore():
    preds, target = torch.tensor([0.9, 0.8, 0.2, 0.1]), torch.tensor([1, 0, 1, 0])
    for ignore_index in (0, 1):
        metric = metrics.BinaryStatScores(ignore_index=ignore_index)
        assert torch.equal(metric(preds, target.bool()), metric(preds, target))


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    top_k=st.integers(1, CLASSES),
    average=st.sampled_from(["micro", "macro", None]),
)
def test_a_target_among_the_best_is_a_right_prediction(seed: int, top_k: int, average: str | None):
    preds, target = data("MulticlassAccuracy", seed)
    best = preds.topk(top_k, dim=1).indices
    corrected = torch.where((best == target.unsqueeze(1)).any(1), target, best[:, 0])
    for base in ("F1Score", "Precision", "Recall", "StatScores", "Specificity"):
        metric = getattr(metrics, f"Multiclass{base}")
        actual = metric(CLASSES, top_k=top_k, average=average)(preds, target)
        torch.testing.assert_close(actual, metric(CLASSES, average=average)(corrected, target))


def test_bytes_do_not_overflow():
    random = torch.Generator().manual_seed(0)
    preds, target = torch.randint(0, 20, (2, 300), generator=random).unbind()
    for metric in (metrics.MulticlassStatScores(20, average=None), metrics.MulticlassConfusionMatrix(20)):
        assert torch.equal(metric(preds.byte(), target.byte()), metric(preds, target))


@pytest.mark.parametrize("name", samples.TASKS)
def test_tasks_make_the_metric_of_the_task(name: str):
    task = getattr(metrics, name)
    assert issubclass(task, metrics.Metric)
    for chosen, form in task.forms.items():
        assert form.task == chosen
        assert form.__name__ == chosen.capitalize() + name
        for spelled in (
            chosen,
            chosen.upper(),
            torchmetrics.utilities.enums.ClassificationTask.from_str(chosen),
        ):
            metric = task(task=spelled, **needed_options(form.__name__))
            assert type(metric) is form
    with pytest.raises(ValueError, match=r"^Invalid Classification: expected one of"):
        task(task="multi")
