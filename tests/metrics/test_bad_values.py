"""No bad value passes silently: it is reported, refused, or the result is NaN. With documented exceptions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from metrics.samples import SAMPLES, Sample
from metrics.test_laws import NAMES, of
from metrics.test_values import flat

import gapless
import gapless.metrics as metrics

FAR = (99, -7)
ORDERED = {
    *metrics.classification.__all__,
    *metrics.retrieval.__all__,
    "TokenAccuracy",
    "CriticalSuccessIndex",
}
"""Metrics that only compare scores with each other or a threshold, which also orders NaN."""


def is_exempt(sample: Sample, position: int, value: float) -> bool:
    """Whether docs/metrics.md lists this bad value as not reported."""
    options = sample.options
    if math.isnan(value):
        ordered = sample.name in ORDERED or options.get("input_format") == "mixed"
        return ordered or options.get("nan_strategy", "warn") not in ("warn", "error")
    numbers_of_queries = sample.name.startswith("Retrieval") and position == 2
    degrees = sample.name == "RetrievalNormalizedDCG" and position == 1
    void = sample.name.endswith("PanopticQuality") and (
        position == 1 or "allow_unknown_preds_category" in options
    )
    any_number = sample.name == "MulticlassAccuracy" and "num_classes" not in options
    return numbers_of_queries or degrees or void or any_number or options.get("input_format") == "one-hot"


def spoil(sample: Sample) -> Iterator[tuple[int, float, tuple[Any, ...]]]:
    """Yield batches with one bad value in one tensor: the tensor's position, the value, and the batch."""
    data = tuple(sample.data(0))
    for position, value_before in enumerate(data):
        if (
            not isinstance(value_before, torch.Tensor)
            or not value_before.numel()
            or value_before.dtype == torch.bool
        ):
            continue
        for value in (math.nan,) if value_before.is_floating_point() else FAR:
            changed = value_before.clone()
            changed.view(-1)[value_before.numel() // 2] = value
            yield position, value, (*data[:position], changed, *data[position + 1 :])


def is_reported(sample: Sample, batch: tuple[Any, ...], device: str = "cpu") -> bool:
    """Whether an error, a warning or a NaN result reveals a bad value in `batch`."""
    metric = sample.make().to(device)
    batch = tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in batch)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            metric.update(*batch)
            metric.check()
            result = metric.compute()
        except (ValueError, RuntimeError):
            return True
    return bool(heard) or any(bool(value.isnan().any()) for value in flat(result))


def find_silent(sample: Sample, device: str) -> list[tuple[str, int, float]]:
    """Return the bad values of a sample that should be reported and are not."""
    return [
        (sample.label, position, value)
        for position, value, batch in spoil(sample)
        if not is_exempt(sample, position, value) and not is_reported(sample, batch, device)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_silent_but_what_is_not_looked_for(name: str) -> None:
    for sample in of(name):
        assert not find_silent(sample, "cpu")


def test_nothing_is_silent_on_a_device() -> None:
    with gapless.emulate():
        assert not [case for name in NAMES for case in find_silent(of(name)[0], "cuda")]


def test_each_exception_is_one() -> None:
    """Every documented exception occurs in some sample."""
    passed = {
        (sample.name in ORDERED, math.isnan(value), position)
        for sample in SAMPLES
        for position, value, batch in spoil(sample)
        if is_exempt(sample, position, value) and not is_reported(sample, batch)
    }
    assert {kind[:2] for kind in passed} == {(True, True), (False, True), (True, False), (False, False)}
