"""No bad value passes in silence: it is told, refused, or the result is NaN. And what is not looked for."""

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
"""Scores are compared with one another or a threshold, where a NaN has its place as any number has."""


def not_looked_for(sample: Sample, position: int, value: float) -> bool:
    """What docs/metrics.md says that nothing tells."""
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


def spoiled(sample: Sample) -> Iterator[tuple[int, float, tuple[Any, ...]]]:
    """A batch with one bad value in one of its tensors: where, which, and the batch."""
    data = tuple(sample.data(0))
    for position, given in enumerate(data):
        if not isinstance(given, torch.Tensor) or not given.numel() or given.dtype == torch.bool:
            continue
        for value in (math.nan,) if given.is_floating_point() else FAR:
            changed = given.clone()
            changed.view(-1)[given.numel() // 2] = value
            yield position, value, (*data[:position], changed, *data[position + 1 :])


def told(sample: Sample, batch: tuple[Any, ...], device: str = "cpu") -> bool:
    """Whether anything says that a value of `batch` is bad."""
    metric = sample.make().to(device)
    batch = tuple(one.to(device) if isinstance(one, torch.Tensor) else one for one in batch)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            metric.update(*batch)
            metric.check()
            result = metric.compute()
        except (ValueError, RuntimeError):
            return True
    return bool(heard) or any(bool(one.isnan().any()) for one in flat(result))


def silent(sample: Sample, device: str) -> list[tuple[str, int, float]]:
    """What is looked for, and nothing tells."""
    return [
        (sample.label, position, value)
        for position, value, batch in spoiled(sample)
        if not not_looked_for(sample, position, value) and not told(sample, batch, device)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_silent_but_what_is_not_looked_for(name: str) -> None:
    for sample in of(name):
        assert not silent(sample, "cpu")


def test_nothing_is_silent_on_a_device() -> None:
    with gapless.emulate():
        assert not [one for name in NAMES for one in silent(of(name)[0], "cuda")]


def test_each_exception_is_one() -> None:
    """What is said not to be looked for passes indeed, somewhere."""
    passed = {
        (sample.name in ORDERED, math.isnan(value), position)
        for sample in SAMPLES
        for position, value, batch in spoiled(sample)
        if not_looked_for(sample, position, value) and not told(sample, batch)
    }
    assert {kind[:2] for kind in passed} == {(True, True), (False, True), (True, False), (False, False)}
