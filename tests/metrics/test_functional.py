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
from gapless.metrics import functional


@pytest.mark.parametrize("name", functional.__all__)
def test_arguments_are_torchmetrics(name):
    ours = [one for one in inspect.signature(getattr(functional, name)).parameters if one != "kwargs"]
    reference = list(inspect.signature(their_function(name)).parameters)
    assert reference == ours[: len(reference)]
    assert ours[len(reference) :] == []


@pytest.mark.parametrize("name", functional.__all__)
def test_values_are_torchmetrics(name):
    ours = getattr(functional, name)
    for sample in SAMPLES:
        options = {k: v for k, v in sample.options.items() if k != "capacity"}
        known = inspect.signature(their_function(name)).parameters
        if functional.function_name(sample.name) == name and set(options) <= set(known):
            given = sample.data(4)[:2]  # all documents are one query's
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert same(ours(*given, **options), their_function(name)(*given, **options)), sample.label


def test_functions_do_not_wait():
    with gapless.emulate() as seen:
        logits, target = torch.rand(6, 3, device="cuda"), torch.zeros(6, dtype=torch.long, device="cuda")
        functional.multiclass_accuracy(logits, target, 3)
        functional.accuracy(logits, target, "multiclass", num_classes=3)
        functional.mean_squared_error(logits, logits)
        functional.pearson_corrcoef(logits, logits)
        functional.multiclass_auroc(logits, target, 3)
        assert seen.waits == 0
