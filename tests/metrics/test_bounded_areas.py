"""Areas from binned scores, in constant memory: bounds on the exact value, and their width."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gapless
import gapless.metrics as metrics

KINDS: dict[str, Any] = {
    "smooth": lambda rows: rows,
    "tied": lambda rows: (rows * 8).round() / 8,
    "near 0 and 1": lambda rows: ((rows - 0.5) * 30).sigmoid(),
    "tiny": lambda rows: rows * 1e-3,
    "one": lambda rows: rows * 0 + 1.0,
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "BinaryAUROC": [{}, {"max_fpr": 0.3}, {"max_fpr": 0.9, "ignore_index": -1}],
    "BinaryAveragePrecision": [{}, {"ignore_index": -1}],
    "MulticlassAUROC": [{"num_classes": 3, "average": how} for how in ("macro", "weighted", None)],
    "MulticlassAveragePrecision": [{"num_classes": 3, "average": how} for how in ("macro", "weighted")],
    "MultilabelAUROC": [{"num_labels": 2, "average": how} for how in ("macro", "micro", "weighted")],
    "MultilabelAveragePrecision": [{"num_labels": 2, "average": how} for how in ("macro", "micro", None)],
}
LEVEL = st.sampled_from([0.0, 1e-4, 0.1, 0.125, 0.3, 0.5, 0.9, 1.0])
THRESHOLDS = st.one_of(
    st.sampled_from([2, 5, 200]),
    st.lists(LEVEL, min_size=1, max_size=6),
    st.just(torch.linspace(-12, 12, 60).sigmoid()),
)


def batch(name: str, kind: str, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    if name.startswith("Binary"):
        scores, target = torch.rand(rows, generator=random), torch.randint(-1, 2, (rows,), generator=random)
        return KINDS[kind](scores), target.clamp(min=0) if seed % 2 else target
    shape = (rows, 3) if name.startswith("Multiclass") else (rows, 2)
    scores = KINDS[kind](torch.rand(shape, generator=random))
    return scores, torch.randint(0, 2, (rows,) if shape[1] == 3 else shape, generator=random)


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    rows=st.integers(1, 40),
    seed=st.integers(0, 2**31),
    thresholds=THRESHOLDS,
    choice=st.integers(0, 2),
)
def test_the_exact_value_is_within_the_bounds(
    name: str, kind: str, rows: int, seed: int, thresholds: Any, choice: int
):
    options = OPTIONS[name][choice % len(OPTIONS[name])]
    preds, target = batch(name, kind, rows, seed)
    if "ignore_index" not in options:
        target = target.clamp(min=0)
    exact, binned = (
        getattr(metrics, name)(thresholds=argument, **options) for argument in (None, thresholds)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in (slice(0, rows // 2), slice(rows // 2, rows)):
            for metric in (exact, binned):
                metric.update(preds[part], target[part])
        value, (low, high) = exact.compute(), binned.bounds()
        same = exact.bounds()
    assert low.shape == high.shape == value.shape
    is_defined = ~value.isnan()
    assert torch.equal(is_defined, ~low.isnan())
    assert bool((low[is_defined] - 1e-6 <= value[is_defined]).all()), (low, value, high)
    assert bool((value[is_defined] <= high[is_defined] + 1e-6).all()), (low, value, high)
    for argument in same:
        torch.testing.assert_close(argument, value, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), counts=st.lists(st.integers(0, 4), min_size=10, max_size=10))
def test_bounds_of_an_area_are_reached(seed: int, counts: list[int]):
    """Within each of five bins all positives score above all negatives, or below."""
    positives, negatives = counts[:5], counts[5:]
    if not (sum(positives) and sum(negatives)):
        return
    binned = metrics.BinaryAUROC(thresholds=[0.0, 0.2, 0.4, 0.6, 0.8])
    extremes = []
    for higher in (0, 1):
        exact = metrics.BinaryAUROC()
        scores, target = [], []
        for i, numbers in enumerate(zip(negatives, positives, strict=True)):
            for truth, number in enumerate(numbers):
                scores += [0.2 * i + 0.05 + 0.1 * (truth == higher)] * number
                target += [truth] * number
        exact.update(torch.tensor(scores), torch.tensor(target))
        extremes.append(exact.compute())
    binned.update(torch.tensor(scores), torch.tensor(target))
    torch.testing.assert_close(binned.bounds(), tuple(extremes))
    pairs = sum(p * n for p, n in zip(positives, negatives, strict=True))
    low, high = binned.bounds()
    assert (high - low).item() == pytest.approx(pairs / (sum(positives) * sum(negatives)), abs=1e-6)


@pytest.mark.parametrize("name", ["BinaryAUROC", "BinaryAveragePrecision"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), kind=st.sampled_from(sorted(KINDS)), more=st.lists(LEVEL, max_size=6))
def test_more_thresholds_never_widen_the_bounds(name: str, seed: int, kind: str, more: list[float]):
    preds, target = batch(name, kind, 40, seed | 1)
    coarse, fine = (
        getattr(metrics, name)(thresholds=sorted({0.0, 0.5, *extra})) for extra in ((), tuple(more))
    )
    for metric in (coarse, fine):
        metric.update(preds, target)
    (low, high), (lower, higher) = fine.bounds(), coarse.bounds()
    assert lower <= low + 1e-6
    assert high <= higher + 1e-6


@pytest.mark.parametrize("name", ["BinaryROC", "BinaryPrecisionRecallCurve"])
@given(seed=st.integers(0, 2**31), kind=st.sampled_from(sorted(KINDS)))
@settings(max_examples=30, deadline=None)
def test_points_of_binned_curves_are_points_of_the_whole(name: str, seed: int, kind: str):
    """With every score as a threshold the curve is exact."""
    preds, target = batch(name, kind, 30, seed | 1)
    target[:2] = torch.tensor([0, 1])
    binned, exact = (getattr(metrics, name)(thresholds=values) for values in (preds.unique(), None))
    points = []
    for metric in (binned, exact):
        metric.update(preds, target)
        size, rows = len(preds.unique()), [values.reshape(-1) for values in metric.compute()[:2]]
        points.append([values[-size:] if name == "BinaryROC" else values[:size] for values in rows])
    torch.testing.assert_close(*points)


def test_bounds_cost_no_wait_and_memory_does_not_grow():
    with gapless.emulate() as emulator:
        metric = metrics.MultilabelAveragePrecision(16, thresholds=200).to("cuda")
        sizes = set()
        for _ in range(5):
            metric.update(torch.rand(64, 16, device="cuda"), torch.ones(64, 16, device="cuda").long())
            low, high = metric.bounds()
            sizes.add(sum(value.untyped_storage().nbytes() for value in metric.scored.state.values()))
        assert emulator.waits == 0
        assert (low.is_cuda, low.shape, high.shape) == (True, (), ())
    assert sizes == {(16 * 201 * 2 + 2 + 1) * 8}


def test_bounds_are_over_all_processes():
    def twice(value: Tensor, group: Any = None) -> list[Tensor]:
        return [value, torch.zeros_like(value)]

    options = {"dist_sync_fn": twice, "distributed_available_fn": lambda: True}
    metric = metrics.BinaryAUROC(thresholds=5, **options)
    metric.update(torch.tensor([0.1, 0.3, 0.4, 0.9]), torch.tensor([0, 0, 1, 1]))
    assert [bound.item() for bound in metric.bounds()] == [0.75, 1.0]
    assert not metric._is_synced
    with metric.sync_context():
        assert [bound.item() for bound in metric.bounds()] == [0.75, 1.0]
        assert metric._is_synced
