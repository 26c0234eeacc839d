"""The core by itself: six verbs over statistics, without what TorchMetrics' users expect."""

from __future__ import annotations

import copy
import doctest
import pickle
from typing import Any

import pytest
import torch
from metrics.ranks import Square
from metrics.samples import Sample
from metrics.test_laws import NAMES, of, quietly
from metrics.test_values import flat, same
from torch import nn

import gapless
from gapless.metrics import Core, MeanMetric, MulticlassAccuracy, core


def test_its_own_examples():
    assert doctest.testmod(core).failed == 0
    assert doctest.testmod(core).attempted > 0


def test_nothing_waits_but_a_result_that_has_not_arrived():
    with gapless.emulate() as emulation:
        values = torch.arange(1.0, 4.0, device="cuda")
        first, second = Square(), Square()
        first.update(values)  # goes where its first batch is
        second.move("cuda")
        second.update(values * 2)
        first.merge(second)
        with first.reduce():  # alone
            assert second.device == first.device == values.device
        second.empty()
        assert not isinstance(first, nn.Module)
        assert first.compute().device.type == second.device.type == "cuda"
        reading = first.read()
        assert emulation.waits == 0
        assert reading.result().item() == pytest.approx(70 / 6)


def test_copies_share_nothing():
    metric = Square()
    metric.update(torch.ones(2))
    for copied in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        copied.update(torch.tensor([4.0]))
        assert (metric.compute().item(), copied.compute().item()) == (1.0, 6.0)


def test_no_bad_value_passes_in_silence():
    with gapless.emulate():
        metric = MeanMetric(nan_strategy="error")
        metric.update(torch.tensor([1.0, torch.nan], device="cuda"))
        with pytest.raises(RuntimeError, match="Encountered `nan`"):
            Core.read(metric).result()
        metric.update(torch.tensor([torch.nan], device="cuda"))
        with pytest.raises(RuntimeError, match="Encountered `nan`"):
            metric.check()


@pytest.mark.parametrize("other", [MulticlassAccuracy(4), MulticlassAccuracy(3, top_k=2), MeanMetric()])
def test_only_what_is_made_alike_is_merged(other: Any):
    with pytest.raises(ValueError, match="Expected a MulticlassAccuracy with the same arguments"):
        MulticlassAccuracy(3).merge(other)


def test_what_a_subclass_must_say():
    with pytest.raises(NotImplementedError):
        Core().update(torch.ones(2))
    with pytest.raises(NotImplementedError):
        Core().value()


def updated_with(sample: Sample, *seeds: int) -> Any:
    metric = sample.make()
    for seed in seeds:
        quietly(metric.update, *sample.data(seed))
    return metric


def state_of(metric: Any) -> Any:
    """The result, or what is said of it where there is no data."""
    try:
        return quietly(metric.compute)
    except (ValueError, RuntimeError) as error:
        return str(error)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_the_identity_and_order_does_not_matter(name: str):
    for sample in of(name):
        whole, first, two = updated_with(sample, 0, 1), updated_with(sample, 0), updated_with(sample, 1)
        expected = flat(quietly(whole.compute))
        other = copy.deepcopy(first)
        first.merge(two)
        assert same(quietly(first.compute), expected), sample.label
        if not any(part.gathers for part in whole.all_statistics()):  # rows stay in the order they come in
            two.merge(other)
            assert same(quietly(two.compute), expected), sample.label
        whole.merge(sample.make())
        assert same(quietly(whole.compute), expected), sample.label
        whole.empty()
        empty, fresh = state_of(whole), state_of(sample.make())
        assert empty == fresh if isinstance(fresh, str) else same(empty, fresh), sample.label
