"""Laws of every metric: storage does not move, copies are independent, checkpoints round-trip."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from metrics.samples import SAMPLES, Sample
from metrics.test_values import flat, same

import gapless.metrics as metrics

NAMES = sorted({sample.name for sample in SAMPLES})


def of(name: str) -> list[Sample]:
    return [sample for sample in SAMPLES if sample.name == name]


def storages(metric: Any) -> dict[str, int]:
    parts = {
        id(part): part
        for module in metric.modules()
        if isinstance(module, metrics.Metric)
        for part in module.all_statistics()
    }
    return {
        f"{key}.{name}": value.untyped_storage().data_ptr()
        for key, part in parts.items()
        for name, value in part.state.items()
    }


def quietly(function: Any, *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args)


@pytest.mark.parametrize("name", NAMES)
def test_storage_stays(name: str):
    for sample in of(name):
        metric = sample.make()
        quietly(metric, *sample.data(0))
        before = storages(metric)
        for seed in range(3):
            quietly(metric.update, *sample.data(seed))
            quietly(metric.compute)
            quietly(metric, *sample.data(seed + 1))
            metric.reset()
            quietly(metric.update, *sample.data(seed))
        assert storages(metric) == before, sample.label


@pytest.mark.parametrize("name", NAMES)
def test_results_are_not_the_state(name: str):
    for sample in of(name):
        metric = sample.make()
        quietly(metric.update, *sample.data(0))
        result = quietly(metric.compute)
        kept = [value.clone() for value in flat(result)]
        quietly(metric.update, *sample.data(1))
        assert same(result, kept), sample.label
        held = set(storages(metric).values())
        assert not held & {value.untyped_storage().data_ptr() for value in flat(result)}, sample.label


@pytest.mark.parametrize("name", NAMES)
def test_forward_is_update_and_the_batch_alone(name: str):
    for sample in of(name):
        forwarded, updated = sample.make(), sample.make()
        for seed in range(2):
            alone = sample.make()
            quietly(alone.update, *sample.data(seed))
            quietly(updated.update, *sample.data(seed))
            assert same(quietly(forwarded, *sample.data(seed)), quietly(alone.compute)), sample.label
        assert same(quietly(forwarded.compute), quietly(updated.compute)), sample.label


@pytest.mark.parametrize("name", NAMES)
def test_reset_forgets_and_copies_are_apart(name: str):
    for sample in of(name):
        metric, fresh = sample.make(), sample.make()
        quietly(metric.update, *sample.data(0))
        twin, sent = copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))
        metric.reset()
        for empty in (metric, fresh):
            quietly(empty.update, *sample.data(1))
        assert same(quietly(metric.compute), quietly(fresh.compute)), sample.label
        assert same(quietly(twin.compute), quietly(sent.compute)), sample.label
        quietly(sent.update, *sample.data(1))
        quietly(twin.update, *sample.data(1))
        assert same(quietly(twin.compute), quietly(sent.compute)), sample.label


@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_come_back(name: str):
    for sample in of(name):
        metric, other = sample.make(), sample.make()
        quietly(metric.update, *sample.data(0))
        assert not metric.state_dict()
        metric.persistent(True)
        other.persistent(True)
        file = io.BytesIO()
        torch.save(metric.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file))
        assert same(quietly(metric.compute), quietly(other.compute)), sample.label


def test_dtypes_stay_when_a_model_is_cast():
    module = torch.nn.Module()
    module.mean = metrics.MeanMetric()
    module.half()
    module.mean.update(torch.ones(2))
    assert module.mean.weighted.state["totals"].dtype == torch.float64
    assert module.mean.compute().dtype == torch.float32
    assert module.mean.set_dtype(torch.float64).compute().dtype == torch.float64


def test_gradients_are_not_kept():
    loss = torch.ones(3, requires_grad=True) * 2
    mean = metrics.MeanMetric()
    assert not mean(loss).requires_grad
    assert not mean.weighted.state["totals"].requires_grad


def test_updates_in_inference_mode():
    with torch.inference_mode():
        metric = metrics.MulticlassAccuracy(3)
        metric.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
    metric.update(torch.tensor([0, 1]), torch.tensor([1, 1]))
    assert metric.update_count == 2


def test_constants_of_the_class_cannot_be_set():
    for name in ("higher_is_better", "is_differentiable", "full_state_update"):
        with pytest.raises(RuntimeError, match=name):
            setattr(metrics.MeanMetric(), name, True)


def test_computing_before_any_update_warns():
    with pytest.warns(UserWarning, match="before the ``update``"):
        metrics.SumMetric().compute()


def test_hashes_and_equality_are_of_the_object():
    first, second = metrics.MeanMetric(), metrics.MeanMetric()
    assert hash(first) != hash(second)
    assert len({first, second, first}) == 2


@pytest.mark.parametrize("deterministic", [True, False])
def test_results_are_the_same_in_every_run(deterministic):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        for name in ("MulticlassF1Score", "MulticlassAUROC", "MulticlassCalibrationError", "MeanIoU"):
            for sample in of(name):
                first, second = sample.make(), sample.make()
                for metric in (first, second):
                    metric.update(*sample.data(5))
                assert all(
                    torch.equal(a, b)
                    for a, b in zip(flat(first.compute()), flat(second.compute()), strict=True)
                )
    finally:
        torch.use_deterministic_algorithms(before)


def shortened(data: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the batch without its samples."""
    return tuple(
        value[:0]
        if isinstance(value, (list, tuple)) or (isinstance(value, torch.Tensor) and value.dim())
        else value
        for value in data
    )


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("Retrieval")])
def test_a_batch_without_samples_changes_nothing(name: str):
    for sample in of(name):
        data = tuple(sample.data(0))
        if not any(isinstance(value, (list, tuple, torch.Tensor)) for value in data):
            continue
        expected = sample.make()
        quietly(expected.update, *data)
        for batches in ((data, shortened(data)), (shortened(data), data)):
            metric = sample.make()
            for batch in batches:
                quietly(metric.update, *batch)
            assert same(quietly(metric.compute), quietly(expected.compute)), sample.label


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("Retrieval")])
def test_retrieval_without_documents_is_refused(name: str):
    for sample in of(name):
        with pytest.raises(ValueError, match="must be non-empty"):
            sample.make().update(*shortened(tuple(sample.data(0))))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_computed_in_full(name: str, dtype: torch.dtype):
    """The result equals that of the rounded values in float32, with the same dtype."""
    for sample in of(name):
        data = tuple(sample.data(0))
        floats = [isinstance(value, torch.Tensor) and value.is_floating_point() for value in data]
        rounded = tuple(
            value.to(dtype) if is_float else value for value, is_float in zip(data, floats, strict=True)
        )
        widened = tuple(
            value.float() if is_float else value for value, is_float in zip(rounded, floats, strict=True)
        )
        results = []
        for batch in (rounded, widened) if any(floats) else ():
            metric = sample.make()
            quietly(metric.update, *batch)
            results.append(flat(quietly(metric.compute)))
        for actual, expected in zip(*results, strict=True) if results else ():
            assert actual.dtype == expected.dtype, sample.label
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5, equal_nan=True)
