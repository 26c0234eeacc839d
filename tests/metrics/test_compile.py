"""Updates compile as one graph, once, and do what they do without."""

from __future__ import annotations

import pytest
import torch
from metrics.samples import SAMPLES
from torch._dynamo.testing import CompileCounter

import gapless.metrics as metrics

COMPILED = [
    "MeanMetric",
    "SumMetric",
    "MaxMetric",
    "MulticlassAccuracy",
    "MulticlassConfusionMatrix",
    "BinaryF1Score",
    "MultilabelF1Score",
    "MulticlassAUROC",
    "MulticlassCalibrationError",
    "MeanSquaredError",
    "PearsonCorrCoef",
    "Perplexity",
    "MeanIoU",
]


def fixed(name: str) -> list:
    return [
        s for s in SAMPLES if s.name == name and not s.may_wait and s.options.get("thresholds", 1) is not None
    ]


@pytest.mark.parametrize("name", COMPILED)
def test_one_graph_and_the_same_values(name):
    sample = fixed(name)[0]
    metric, plain = sample.make(), sample.make()
    torch._dynamo.reset()
    counter = CompileCounter()
    update = torch.compile(metric.update, fullgraph=True, backend=counter)
    for seed in range(50):
        update(*sample.data(seed))
        plain.update(*sample.data(seed))
    assert counter.frame_count == 1
    torch.testing.assert_close(metric.compute(), plain.compute())


def test_a_collection_compiles_as_one_graph():
    def make():
        return metrics.MetricCollection(
            metrics.MulticlassAccuracy(4), metrics.MulticlassF1Score(4), metrics.MulticlassConfusionMatrix(4)
        )

    collection, plain = make(), make()
    torch._dynamo.reset()
    counter = CompileCounter()
    update = torch.compile(collection.update, fullgraph=True, backend=counter)
    random = torch.Generator().manual_seed(0)
    for _ in range(50):
        preds, target = torch.randn(9, 4, generator=random), torch.randint(0, 4, (9,), generator=random)
        update(preds, target)
        plain.update(preds, target)
    assert counter.frame_count == 1
    torch.testing.assert_close(collection.compute(), plain.compute())


def test_bad_values_are_reported_after_a_compiled_update():
    torch._dynamo.reset()
    metric = metrics.MulticlassAccuracy(3)
    update = torch.compile(metric.update, fullgraph=True, backend="eager")
    update(torch.tensor([0, 1]), torch.tensor([0, 9]))
    with pytest.raises(RuntimeError, match="Detected 1 value"):
        metric.check()
