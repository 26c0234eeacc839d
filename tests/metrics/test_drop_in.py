"""Changing the import is enough: constructors, shapes, dtypes, attributes and messages are TorchMetrics'."""

from __future__ import annotations

import copy
import inspect
import operator
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchmetrics
import torchmetrics.segmentation
import torchmetrics.text
from metrics.references import ROOMS, has_reference, their_function, theirs
from metrics.samples import NEEDED
from metrics.test_functional import THEIRS
from torch import Tensor

import gapless
import gapless.metrics as metrics
import gapless.metrics.functional as functional

CLASSES, LABELS, ROWS = 4, 3, 8
FORMS = ("Binary", "Multiclass", "Multilabel")
NAMES = [name for name in metrics.classification.__all__ if name.startswith(FORMS) and has_reference(name)]
ENDINGS = ("Accuracy", "F1Score", "Precision", "Recall", "StatScores", "ConfusionMatrix", "JaccardIndex")
SHAPED = [name for name in NAMES if name.endswith(ENDINGS) and not re.search("Average|AtFixed", name)]

BAD: dict[str, list[Any]] = {
    "num_classes": [1, 0, 2.0, "4"],
    "num_labels": [1, 0],
    "threshold": [-0.1, 1.5, 1, "a", None],
    "average": ["bad", 1, "samples"],
    "top_k": [5],
    "multidim_average": ["bad", None],
    "ignore_index": ["a", 1.0],
    "thresholds": [1, 0, "a", [0.1, 2.0], [0.1, "a"], torch.zeros(1, 1), (0.1, 0.2)],
    "normalize": ["bad", 1],
    "weights": ["bad", 1],
    "beta": [0.0, -1.0, "a", 2],
    "n_bins": [0, 1.5, "a"],
    "norm": ["bad", None],
    "squared": [1, "a"],
    "multiclass_mode": ["bad", None],
    "min_precision": [2, -1],
    "min_recall": [2, -1],
    "min_specificity": [2, -1],
    "min_sensitivity": [2, -1],
}
KEYWORDS: dict[str, Any] = {
    "bogus": 1,
    "compute_on_cpu": "a",
    "dist_sync_on_step": 1,
    "sync_on_compute": 1,
    "compute_with_cache": "x",
    "dist_sync_fn": 3,
}
OTHER_WORDS = {
    # Names the argument that there is.
    *((f"{form}PrecisionAtFixedRecall", "min_recall") for form in FORMS),
    *((f"Multilabel{base}", "num_labels") for base in NEEDED),
    ("MultilabelEER", "num_labels"),
    ("MultilabelAUROC", "num_labels"),
    ("MultilabelAveragePrecision", "num_labels"),
    ("MultilabelPrecisionRecallCurve", "num_labels"),
    ("MultilabelROC", "num_labels"),
}


def needed_options(name: str) -> dict[str, Any]:
    """Return the required arguments of a metric."""
    options = dict(
        next((arguments_of_base for base, arguments_of_base in NEEDED.items() if name.endswith(base)), {})
    )
    if name.startswith("Multiclass"):
        options["num_classes"] = CLASSES
    if name.startswith("Multilabel"):
        options["num_labels"] = LABELS
    return options


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the exception that it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call()
        except Exception as error:
            return error


def construct(home: Any, name: str, options: dict[str, Any]) -> Any:
    return outcome(lambda: (theirs(name) if home is torchmetrics else getattr(home, name))(**options))


def arguments(name: str) -> list[str]:
    return list(inspect.signature(theirs(name).__init__).parameters)


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_is_refused_in_the_same_words(name: str):
    cases = [(k, v) for k in arguments(name) for v in BAD.get(k, [])] + list(KEYWORDS.items())
    compared = 0
    for argument, value in cases:
        options = {**needed_options(name), argument: value}
        expected, actual = construct(torchmetrics, name, options), construct(metrics, name, options)
        assert isinstance(actual, (ValueError, TypeError)), (argument, value)
        if isinstance(expected, ValueError) and (name, argument) not in OTHER_WORDS:
            assert type(actual) is ValueError, (argument, value)
            assert str(actual) == str(expected), (argument, value)
            compared += 1
    assert compared >= len(KEYWORDS)


@pytest.mark.parametrize(
    "name", ["Accuracy", "F1Score", "AUROC", "ConfusionMatrix", "ExactMatch", "CohenKappa"]
)
def test_tasks_are_refused_in_the_same_words(name: str):
    for options in ({"task": "bad"}, {"task": "multiclass"}, {"task": "multiclass", "num_classes": 2.0}):
        expected, actual = construct(torchmetrics, name, options), construct(metrics, name, options)
        assert type(actual) is type(expected) is ValueError
        if name != "Accuracy" or options["task"] == "bad":
            assert str(actual) == str(expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("MeanSquaredError", {"squared": "a"}),
        ("MeanSquaredError", {"num_outputs": 0}),
        ("MeanAbsoluteError", {"num_outputs": 1.5}),
        ("R2Score", {"adjusted": -1}),
        ("R2Score", {"multioutput": "bad"}),
        ("ExplainedVariance", {"multioutput": "bad"}),
        ("CosineSimilarity", {"reduction": "bad"}),
        ("MeanMetric", {"nan_strategy": "bad"}),
        ("SumMetric", {"nan_strategy": 1}),
        ("RunningMean", {"window": 0}),
        ("Perplexity", {"ignore_index": "a"}),
        ("MeanIoU", {"input_format": "index"}),
        ("MeanIoU", {"num_classes": -1}),
        ("MeanIoU", {"num_classes": 3, "include_background": "a"}),
        ("MeanIoU", {"num_classes": 3, "per_class": "a"}),
        ("MeanIoU", {"num_classes": 3, "input_format": "bad"}),
        ("DiceScore", {"num_classes": 0}),
        ("DiceScore", {"num_classes": 3, "average": "bad"}),
        ("DiceScore", {"num_classes": 3, "aggregation_level": "bad"}),
    ],
)
def test_other_metrics_refuse_in_the_same_words(name: str, options: dict[str, Any]):
    expected, actual = construct(torchmetrics, name, options), construct(metrics, name, options)
    assert type(actual) is type(expected) is ValueError
    assert str(actual) == str(expected)


def batch(name: str, random: torch.Generator, extra: tuple[int, ...] = (), rows: int = ROWS) -> list[Tensor]:
    """Return probabilities and targets that fit the metric."""
    if name.startswith("Multiclass"):
        preds = torch.randn(rows, CLASSES, *extra, generator=random).softmax(1)
        return [preds, torch.randint(0, CLASSES, (rows, *extra), generator=random)]
    shape = (rows, *extra) if name.startswith("Binary") else (rows, LABELS, *extra)
    return [torch.rand(shape, generator=random), torch.randint(0, 2, shape, generator=random)]


def assert_same(actual: Any, expected: Any, about: Any) -> None:
    """Assert equal numbers, types and shapes, or equal exceptions."""
    if isinstance(expected, Exception):
        assert type(actual) is type(expected), (about, actual, expected)
        assert str(actual) == str(expected), (about, actual, expected)
        return
    assert type(actual) is type(expected), (about, actual)
    if isinstance(expected, (list, tuple)):
        for value, expected_value in zip(actual, expected, strict=True):
            assert_same(value, expected_value, about)
    else:
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True, msg=str(about))


def run(metric: Any, batches: list[list[Tensor]]) -> Any:
    def call() -> Any:
        with_forward = [metric(*[tensor.clone() for tensor in arguments]) for arguments in batches]
        return [*with_forward, metric.compute()]

    return outcome(call)


@pytest.mark.parametrize("name", NAMES)
def test_values_come_in_the_same_form(name: str):
    random = torch.Generator().manual_seed(0)
    floats = (torch.float32,) if "Calibration" in name else (torch.float32, torch.float16, torch.float64)
    for preds_type in floats if name in SHAPED else (torch.float32,):
        for target_type in (torch.int64, torch.int32, torch.uint8, torch.bool):
            if preds_type != torch.float32 and target_type != torch.int64:
                continue
            batches = [batch(name, random) for _ in range(2)]
            typed = [[preds.to(preds_type), target.to(target_type)] for preds, target in batches]
            if name.startswith("Multiclass"):
                typed = (
                    [[preds, target.clamp(max=1)] for preds, target in typed]
                    if target_type == torch.bool
                    else typed
                )
            expected = run(theirs(name)(**needed_options(name)), typed)
            if isinstance(expected, NotImplementedError):
                continue
            actual = run(getattr(metrics, name)(**needed_options(name)), typed)
            assert_same(actual, expected, (name, preds_type, target_type))


@pytest.mark.parametrize("name", SHAPED)
def test_shapes_and_single_samples(name: str):
    random = torch.Generator().manual_seed(1)
    several = [{}]
    if "average" in arguments(name):
        several += [{"average": how} for how in ("micro", "macro", "weighted", "none")]
    if "multidim_average" in arguments(name):
        several.append({"multidim_average": "samplewise"})
    for options in several:
        options = {**needed_options(name), **options}
        least = (5,) if "multidim_average" in options else ()
        shapes = [(least, ROWS), ((3, 2), ROWS)] + ([] if "StatScores" in name and least else [(least, 1)])
        for extra, rows in shapes:
            data = [batch(name, random, extra, rows)]
            actual = run(getattr(metrics, name)(**options), data)
            assert_same(actual, run(theirs(name)(**options), data), (options, extra, rows))


@pytest.mark.parametrize("name", [*SHAPED, "BinaryROC", "MulticlassAUROC", "MultilabelAveragePrecision"])
def test_shapes_that_do_not_fit_are_refused_in_the_same_words(name: str):
    preds, target = batch(name, torch.Generator().manual_seed(2))
    wide, _ = batch(name, torch.Generator().manual_seed(2), (5,))
    cases = [(wide.unsqueeze(-1), target), (preds, target.unsqueeze(-1).unsqueeze(-1))]
    if preds.dim() > 1:
        cases.append((preds[:, :-1], target))
    else:
        cases.append((preds[:-1], target))
    for batch_ in cases:
        expected = outcome(lambda batch_=batch_: theirs(name)(**needed_options(name)).update(*batch_))
        actual = outcome(lambda batch_=batch_: getattr(metrics, name)(**needed_options(name)).update(*batch_))
        assert isinstance(expected, (ValueError, RuntimeError))
        words = str(expected) if len(expected.args) == 1 else "".join(expected.args)
        assert type(actual) is type(expected)
        assert " ".join(str(actual).split()) == " ".join(words.split())


def test_samplewise_without_samples_says_so():
    metric = metrics.MulticlassAccuracy(3, multidim_average="samplewise")
    for empty in (metric, metrics.BinaryAUROC()):
        with (
            pytest.warns(UserWarning, match="before the ``update``"),
            pytest.raises(ValueError, match="No samples"),
        ):
            empty.compute()


def test_functions_take_the_same_arguments():
    compared = 0
    for name in THEIRS:
        theirs = inspect.signature(their_function(name)).parameters.values()
        ours = inspect.signature(getattr(functional, name)).parameters.values()
        expected = [(parameter.name, parameter.default) for parameter in theirs]
        assert [
            (parameter.name, parameter.default) for parameter in ours if parameter.name != "kwargs"
        ] == expected, name
        compared += 1
    assert compared > 80


@pytest.mark.parametrize(
    "name", ["mean_squared_error", "r2_score", "pearson_corrcoef", "mean_absolute_error"]
)
def test_functions_keep_double_precision(name: str):
    x, y = torch.rand(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).unbind()
    actual, expected = getattr(functional, name)(x, y), getattr(torchmetrics.functional, name)(x, y)
    assert actual.dtype == torch.float64
    assert actual.item() == pytest.approx(expected.item(), rel=1e-12)


ATTRIBUTES = (
    "is_differentiable",
    "higher_is_better",
    "plot_lower_bound",
    "plot_upper_bound",
    "plot_legend_name",
)


@pytest.mark.parametrize(
    "name", [name for room in ROOMS for name in getattr(metrics, room).__all__ if has_reference(name)]
)
def test_attributes_of_classes(name: str):
    for attribute in ATTRIBUTES:
        assert getattr(getattr(metrics, name), attribute) == getattr(theirs(name), attribute), attribute


def test_what_belongs_to_the_class_cannot_be_set():
    for home in (torchmetrics.classification, metrics):
        for attribute in ("is_differentiable", "higher_is_better", "full_state_update"):
            with pytest.raises(RuntimeError, match=f"^Can't change const `{attribute}`.$"):
                setattr(home.BinaryAccuracy(), attribute, True)
        assert repr(home.BinaryAccuracy()) == "BinaryAccuracy()"


def test_what_users_ask_a_metric():
    preds, target = batch("MulticlassAccuracy", torch.Generator().manual_seed(4))
    answers = []
    for home in (torchmetrics.classification, metrics):
        metric = home.MulticlassAccuracy(CLASSES, ignore_index=1)
        answer = [metric.num_classes, metric.average, metric.top_k, metric.ignore_index, metric.validate_args]
        answer += [metric.update_called, metric.update_count]
        metric.update(preds, target)
        metric(preds, target)
        answer += [metric.update_called, metric.update_count]
        metric.reset()
        answer += [metric.update_called, metric.update_count, metric in {metric: 1}, len(metric.state_dict())]
        with pytest.raises(TypeError, match="not iterable"):
            iter(metric)
        answers.append(answer)
    assert answers[0] == answers[1]


OPERATIONS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("other", [2, 2.0, torch.tensor(2.0), "metric"])
@pytest.mark.parametrize("swapped", [False, True])
def test_arithmetic(operation: Callable[..., Any], other: Any, swapped: bool):
    def values(home: Any) -> list[Tensor]:
        operands = [home.SumMetric(), home.MeanMetric() if isinstance(other, str) else other]
        combined = operation(*operands[::-1]) if swapped else operation(*operands)
        assert isinstance(combined, home.Metric)
        combined.update(torch.tensor(5.0))
        results = [combined(torch.tensor(3.0)), combined.compute()]
        combined.reset()
        combined.update(torch.tensor(1.5))
        return [*results, combined.compute()]

    expected = outcome(lambda: values(torchmetrics))
    if not isinstance(expected, TypeError):
        assert_same(values(metrics), expected, operation)


def test_arithmetic_of_what_a_metric_holds():
    preds, target = batch("MulticlassAccuracy", torch.Generator().manual_seed(5))
    precision, recall = (
        metric(CLASSES, average="none") for metric in (metrics.MulticlassPrecision, metrics.MulticlassRecall)
    )
    score = 2 * (precision * recall) / (precision + recall + 1e-12)
    score.update(preds, target=target)
    expected = metrics.MulticlassF1Score(CLASSES, average="none")(preds, target)
    torch.testing.assert_close(score.compute(), expected)
    torch.testing.assert_close(score[1].compute(), expected[1])
    torch.testing.assert_close((-score).compute(), -expected)
    torch.testing.assert_close(abs(-score).compute(), expected)
    copied, again = copy.deepcopy(score), pickle.loads(pickle.dumps(score))
    copied.reset()
    torch.testing.assert_close(again.compute(), expected)
    torch.testing.assert_close(score.compute(), expected)


@pytest.mark.parametrize("name", ["sum", "zero"])
def test_arithmetic_in_a_collection(name: str):
    total = metrics.SumMetric() + metrics.MeanMetric()
    collection = metrics.MetricCollection({"mixed": total, name: metrics.SumMetric()})
    collection.update(torch.tensor([1.0, 3.0]))
    assert {k: v.item() for k, v in collection(torch.tensor([2.0])).items()} == {"mixed": 4.0, name: 2.0}
    assert {k: v.item() for k, v in collection.compute().items()} == {"mixed": 8.0, name: 6.0}


def test_arithmetic_does_not_wait():
    with gapless.emulate() as emulator:
        score = 0.5 * metrics.MulticlassRecall(CLASSES) + metrics.MulticlassPrecision(CLASSES) % 3
        score.to("cuda")
        preds = torch.rand(ROWS, CLASSES, device="cuda")
        target = torch.randint(CLASSES, (ROWS,), device="cuda")
        before = emulator.waits
        score.update(preds, target)
        score(preds, target)
        score.compute()
        score.reset()
        assert emulator.waits == before, emulator.session.sites
