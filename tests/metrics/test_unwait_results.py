"""`unwait`: results that looked at values on the host are the same without, and how often they still wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics.unwaiting import assert_same, assert_same_unwaited
from torch import Tensor
from torchmetrics import classification as tc
from torchmetrics import retrieval, segmentation
from torchmetrics.retrieval.base import RetrievalMetric
from torchmetrics.wrappers import MinMaxMetric

import gapless
from gapless.metrics.torchmetrics import unwait

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

AREAS = [tc.MulticlassAUROC, tc.MulticlassAveragePrecision, tc.MultilabelAUROC, tc.MultilabelAveragePrecision]
FIXED = [
    (torchmetrics.PrecisionAtFixedRecall, "min_recall"),
    (torchmetrics.RecallAtFixedPrecision, "min_precision"),
    (torchmetrics.SensitivityAtSpecificity, "min_specificity"),
    (torchmetrics.SpecificityAtSensitivity, "min_sensitivity"),
]


def scores_of(g: torch.Generator, shape: tuple[int, ...], ties: bool) -> Tensor:
    scores = torch.rand(shape, generator=g)
    return (scores * 4).round() / 4 if ties else scores


@settings(max_examples=80, deadline=None)
@given(
    cls=st.sampled_from(AREAS),
    average=st.sampled_from(["macro", "weighted", "none"]),
    ignore_index=st.sampled_from([None, 0, 1, -1]),
    ties=st.booleans(),
    only_zeros=st.booleans(),
    n=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_exact_areas(
    cls: Any, average: str, ignore_index: int | None, ties: bool, only_zeros: bool, n: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    classes = "Multiclass" in cls.__name__
    target = torch.randint(3 if classes else 2, (n,) if classes else (n, 3), generator=g)
    if only_zeros:
        target.zero_()
    if ignore_index is not None:
        target[torch.rand(target.shape, generator=g) < 0.2] = ignore_index
    if ignore_index is not None and bool((target == ignore_index).all()):
        return
    assert_same_unwaited(
        lambda: cls(3, average=average, ignore_index=ignore_index), (scores_of(g, (n, 3), ties), target)
    )


@settings(max_examples=30, deadline=None)
@given(
    cls=st.sampled_from([tc.BinaryAUROC, tc.BinaryAveragePrecision]),
    ties=st.booleans(),
    max_fpr=st.sampled_from([None, 1.0, 0.4]),
    n=st.integers(2, 20),
    seed=st.integers(0, 1000),
)
def test_exact_areas_of_two(cls: Any, ties: bool, max_fpr: float | None, n: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    options = {"max_fpr": max_fpr} if cls is tc.BinaryAUROC else {}
    assert_same_unwaited(
        lambda: cls(**options), (scores_of(g, (n,), ties), torch.randint(2, (n,), generator=g))
    )


def test_many_columns_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.metrics.torchmetrics.replacements.exact_areas.MAX_SCORES_AT_ONCE", 30)
    g = torch.Generator().manual_seed(0)
    batch = scores_of(g, (12, 7), True), torch.randint(7, (12,), generator=g)
    assert_same_unwaited(lambda: tc.MulticlassAUROC(7, average=None), batch)
    assert_same_unwaited(lambda: tc.MulticlassAveragePrecision(7, average=None), batch)


@settings(max_examples=80, deadline=None)
@given(
    points=st.sampled_from(FIXED),
    task=st.sampled_from(["binary", "binary", "multiclass", "multilabel"]),
    least=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    thresholds=st.sampled_from([None, 5, [0.0, 0.5, 1.0]]),
    ties=st.booleans(),
    n=st.integers(2, 12),
    seed=st.integers(0, 1000),
)
def test_points_of_curves(
    points: Any, task: str, least: float, thresholds: Any, ties: bool, n: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    cls, name = points
    shape = (n,) if task == "binary" else (n, 3)
    high, form = (3, (n,)) if task == "multiclass" else (2, shape)
    batch = scores_of(g, shape, ties), torch.randint(high, form, generator=g)
    options = {name: least, "thresholds": thresholds, "num_classes": 3, "num_labels": 3}
    assert_same_unwaited(lambda: cls(task=task, **options), batch)


@pytest.mark.parametrize("least", [0.0, 0.5])
@pytest.mark.parametrize("scores", [[0.4, 0.3], [0.9, 0.3]])
def test_a_precision_that_is_not_defined(least: float, scores: list[float]) -> None:
    batch = torch.tensor(scores), torch.tensor([0, 1])
    for thresholds in ([0.0, 0.25, 0.5, 0.75, 1.0], [0.5, 0.75, 1.0]):
        assert_same_unwaited(lambda t=thresholds: tc.BinaryPrecisionAtFixedRecall(least, thresholds=t), batch)


@settings(max_examples=40, deadline=None)
@given(
    points=st.sampled_from(
        [
            lambda t: tc.MulticlassEER(3, thresholds=t),
            lambda t: tc.MulticlassLogAUC(3, thresholds=t, fpr_range=(0.05, 0.6), average="macro"),
            lambda t: tc.MulticlassLogAUC(3, thresholds=t, fpr_range=(0.001, 1.0), average=None),
        ]
    ),
    thresholds=st.sampled_from([None, 9]),
    n=st.integers(3, 30),
    seed=st.integers(0, 1000),
)
def test_errors_and_log_areas(points: Any, thresholds: int | None, n: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    assert_same_unwaited(
        lambda: points(thresholds), (scores_of(g, (n, 3), False), torch.randint(3, (n,), generator=g))
    )


@settings(max_examples=40, deadline=None)
@given(ties=st.booleans(), n=st.integers(1, 15), labels=st.integers(2, 6), seed=st.integers(0, 1000))
def test_ranks(ties: bool, n: int, labels: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    scores = scores_of(g, (n, labels), ties)
    target = torch.randint(2, (n, labels), generator=g)
    assert_same_unwaited(lambda: tc.MultilabelRankingAveragePrecision(labels), (scores, target))
    other = scores_of(g, (n, labels), ties)
    assert_same_unwaited(lambda: torchmetrics.SpearmanCorrCoef(num_outputs=labels), (scores, other))


@settings(max_examples=30, deadline=None)
@given(
    weight_type=st.sampled_from(["square", "simple", "linear"]),
    per_class=st.booleans(),
    include_background=st.booleans(),
    n=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_generalized_dice(
    weight_type: str, per_class: bool, include_background: bool, n: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    preds, target = (torch.randint(4, (n, 3, 3), generator=g) for _ in range(2))
    target[target == 3] = 0  # a class that is absent
    options = {"weight_type": weight_type, "per_class": per_class, "include_background": include_background}
    assert_same_unwaited(
        lambda: segmentation.GeneralizedDiceScore(4, input_format="index", **options),
        (preds, target),
    )


def on_device(make: Callable[[], Any], *batches: tuple[Tensor, ...]) -> tuple[int, Any, Any]:
    """Waits of a result on the emulated device, the result on the host, and where it was."""
    with gapless.emulate() as emulation:
        metric = make().to("cuda")
        unwait(metric, checks="later")
        for inputs in batches:
            metric.update(*(tensor.to("cuda") for tensor in inputs))
        before = emulation.waits
        value = metric.compute()
        return emulation.waits - before, value.cpu(), (value.device.type, metric.device.type)


RETRIEVAL = ["RetrievalMAP", "RetrievalMRR", "RetrievalNormalizedDCG", "RetrievalFallOut", "RetrievalHitRate"]


@pytest.mark.parametrize("name", RETRIEVAL)
@pytest.mark.parametrize("queries", [2, 20])
def test_retrieval_waits_once_however_many_queries(name: str, queries: int) -> None:
    g = torch.Generator().manual_seed(0)
    n = 5 * queries
    batches = [
        (torch.rand(n, generator=g), torch.randint(2, (n,), generator=g), torch.arange(n) % queries)
        for _ in range(2)
    ]
    make = getattr(retrieval, name)
    waits, value, where = on_device(make, *batches)
    assert waits == 1
    assert where == ("cuda", "cuda")
    plain = make()
    for inputs in batches:
        plain.update(*inputs)
    assert_same(plain.compute(), value)


class OwnRetrieval(RetrievalMetric):
    """A measure of the user's own, which may rely on where its tensors are."""

    def _metric(self, preds: Tensor, target: Tensor) -> Tensor:
        assert preds.device.type == "cuda"
        return target[preds.argmax()].float()


def test_code_of_the_users_own_stays_on_the_device() -> None:
    batch = torch.rand(6), torch.tensor([0, 1, 1, 0, 1, 0]), torch.tensor([0, 0, 0, 1, 1, 1])
    _, value, where = on_device(OwnRetrieval, batch)
    assert where == ("cuda", "cuda")
    assert value.dim() == 0


def test_states_stay_on_the_device_when_a_result_fails() -> None:
    with gapless.emulate():
        metric = retrieval.RetrievalMAP(empty_target_action="error").to("cuda")
        unwait(metric)
        inputs = torch.rand(4), torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long)
        metric.update(*(tensor.to("cuda") for tensor in inputs))
        with pytest.raises(ValueError, match="no positive target"):
            metric.compute()
        assert metric.device.type == "cuda"
        assert all(tensor.device.type == "cuda" for tensor in metric.preds)


def test_the_least_and_the_greatest() -> None:
    plain, metric = (MinMaxMetric(torchmetrics.MeanSquaredError()) for _ in range(2))
    unwait(metric)
    for value in (3.0, 1.0, 2.0):
        for each in (plain, metric):
            each.update(torch.tensor([value]), torch.tensor([0.0]))
        assert_same(plain.compute(), metric.compute())
        for each in (plain, metric):
            each._base_metric.reset()
