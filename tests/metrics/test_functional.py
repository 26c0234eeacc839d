"""Functions of one batch: TorchMetrics' names, order of arguments and values; no wait."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from metrics.references import their_function
from metrics.samples import SAMPLES
from metrics.test_values import same

import gapless
import gapless.metrics as metrics
from gapless.metrics import functional
from gapless.metrics.rooms import ROOMS, file_in_torchmetrics, metrics_of

ALL = {name: metric for room in ROOMS for name, metric in metrics_of(room).items()}
OWN = {
    functional.function_name(sample.name): sample
    for sample in SAMPLES
    if sample.name in ALL and file_in_torchmetrics(ALL[sample.name]) is None
}
"""Of metrics that TorchMetrics lacks."""
THEIRS = [name for name in functional.__all__ if name not in OWN]


@pytest.mark.parametrize("name", THEIRS)
def test_arguments_are_torchmetrics(name):
    ours = [
        parameter
        for parameter in inspect.signature(getattr(functional, name)).parameters
        if parameter != "kwargs"
    ]
    reference = list(inspect.signature(their_function(name)).parameters)
    assert reference == ours[: len(reference)]
    assert ours[len(reference) :] == []


@pytest.mark.parametrize("name", sorted(OWN))
def test_a_metric_that_torchmetrics_lacks_has_a_function_too(name):
    sample, function = OWN[name], getattr(functional, name)
    whole = sample.make()
    whole.update(*sample.data(4))
    assert same(function(*sample.data(4), **sample.options), whole.compute())
    taken = list(inspect.signature(function).parameters)
    assert taken == ["preds", "target", *inspect.signature(getattr(metrics, sample.name)).parameters]


@pytest.mark.parametrize("name", THEIRS)
def test_values_are_torchmetrics(name):
    ours = getattr(functional, name)
    for sample in SAMPLES:
        options = {k: v for k, v in sample.options.items() if k != "capacity"}
        parameters = inspect.signature(their_function(name)).parameters
        if functional.function_name(sample.name) == name and set(options) <= set(parameters):
            batch = sample.data(4)[:2]  # all documents are one query's
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert same(ours(*batch, **options), their_function(name)(*batch, **options)), sample.label


def test_functions_do_not_wait():
    with gapless.emulate() as emulation:
        logits, target = torch.rand(6, 3, device="cuda"), torch.zeros(6, dtype=torch.long, device="cuda")
        functional.multiclass_accuracy(logits, target, 3)
        functional.accuracy(logits, target, "multiclass", num_classes=3)
        functional.mean_squared_error(logits, logits)
        functional.pearson_corrcoef(logits, logits)
        functional.multiclass_auroc(logits, target, 3)
        assert emulation.waits == 0
