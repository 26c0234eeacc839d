"""The host never waits, with every check on; where a result's length depends on the data, ``compute`` alone
does.
"""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from metrics.samples import SAMPLES, Sample

import gapless
import gapless.metrics as metrics

BASES = {"Core", "Metric", "MetricCollection", "Reading", "fused", "merge_states", "strict"} | {
    "torchmetrics_states"
}
PARTS = {"Batch", "Every", "Slot", "Statistic", "Sum"}
"""What a metric of one's own is built from."""
WRAPPERS = {"BootStrapper", "ClasswiseWrapper", "MetricTracker", "MinMaxMetric", "Running"} | {
    "MultioutputWrapper",
    "MultitaskWrapper",
    "BinaryTargetTransformer",
    "LambdaInputTransformer",
    "MetricInputTransformer",
}
CLOCKS = {"StepTime", "Throughput"}
"""Those whose results are no function of their batches; they have tests of their own."""


def test_every_metric_has_a_sample():
    sampled = {sample.name for sample in SAMPLES} | BASES | PARTS | WRAPPERS | CLOCKS
    missing = set(metrics.__all__) - sampled
    assert not missing, f"add a sample of {sorted(missing)} to tests/metrics/samples.py"
    assert sampled <= set(metrics.__all__)


def family(sample: Sample) -> str:
    """The first letter of the name without its task; an emulation for each metric would cost more."""
    return re.sub("^(Binary|Multiclass|Multilabel)", "", sample.name)[:1]


@pytest.mark.parametrize("letter", sorted({family(sample) for sample in SAMPLES}))
def test_nothing_waits(letter: str):
    with gapless.emulate() as emulation:
        for sample in SAMPLES:
            if family(sample) == letter:
                before = emulation.waits
                reading = use(sample)
                assert emulation.waits == before, (sample.label, emulation.session.sites)
                if reading is not None:
                    reading.result()


def use(sample: Sample) -> metrics.Reading | None:
    """Everything a loop does with a metric; ``compute`` only where it is not to wait."""
    metric, reading = sample.make().to("cuda"), None
    for seed in range(2):
        metric.update(*sample.data(seed, "cuda"))
    metric.reset()
    if not sample.may_wait:
        metric(*sample.data(2, "cuda"))
        metric.compute()
        reading = metric.read()
    metric.update(*sample.data(3, "cuda"))
    return reading


@pytest.mark.parametrize(
    "make",
    [
        lambda: metrics.Running(metrics.MulticlassAccuracy(4), 3),
        lambda: metrics.MinMaxMetric(metrics.MulticlassAccuracy(4)),
        lambda: metrics.ClasswiseWrapper(metrics.MulticlassAccuracy(4, average="none")),
        lambda: metrics.BootStrapper(metrics.MulticlassAccuracy(4), 3),
        lambda: metrics.MetricCollection(
            {
                "accuracy": metrics.MulticlassAccuracy(4),
                "table": metrics.ClasswiseWrapper(metrics.MulticlassRecall(4, average="none")),
                "auroc": metrics.MulticlassAUROC(4, thresholds=20),
                "running": metrics.Running(metrics.MulticlassF1Score(4), 2),
            }
        ),
    ],
    ids=["Running", "MinMax", "Classwise", "BootStrapper", "MetricCollection"],
)
def test_wrappers_do_not_wait(make):
    random = torch.Generator().manual_seed(0)
    with gapless.emulate() as emulation:
        metric = make().to("cuda")
        for _ in range(4):
            preds = torch.randn(8, 4, generator=random).pin_memory().to("cuda", non_blocking=True)
            target = torch.randint(0, 4, (8,), generator=random).pin_memory().to("cuda", non_blocking=True)
            metric(preds, target)
            metric.update(preds, target)
        metric.compute()
        metric.read()
        metric.reset()
        assert emulation.waits == 0, emulation.session.sites


def test_numbers_and_host_tensors_do_not_wait():
    with gapless.emulate() as emulation:
        metric = metrics.MeanMetric().to("cuda")
        on_device = torch.ones(3, device="cuda")
        for value, weight in [
            (1.5, 1.0),
            (1.5, 2),
            (on_device, 0.5),
            (2.0, on_device),
            (torch.ones(3), 1.0),
            (torch.tensor(3.0), 2.0),
            (on_device, torch.tensor(2.0)),
            ([1.0, 2.0], 1.0),
        ]:
            metric.update(value, weight)
        metric(on_device.half())
        assert emulation.waits == 0


def test_a_metric_follows_its_first_batch_to_the_device():
    with gapless.emulate() as emulation:
        metric = metrics.MulticlassAccuracy(3)
        metric.update(torch.eye(3, device="cuda"), torch.arange(3, device="cuda"))
        collection = metrics.MetricCollection(
            metrics.MulticlassRecall(3), metrics.MulticlassAUROC(3, thresholds=5)
        )
        collection(torch.eye(3, device="cuda"), torch.arange(3, device="cuda"))
        assert (metric.device.type, collection.device.type, emulation.waits) == ("cuda", "cuda", 0)
        assert metric.read().result().item() == 1


def test_readings_wait_only_when_asked():
    with gapless.emulate() as emulation:
        metric = metrics.MeanMetric().to("cuda")
        metric.update(torch.ones(4, device="cuda"))
        reading = metric.read()
        assert emulation.waits == 0
        assert reading.result().item() == 1
        logged = []
        collection = metrics.MetricCollection({"mean": metrics.MeanMetric()}).to("cuda")
        collection.every(2, lambda update, result: logged.append((update, result["mean"].item())), reset=True)
        before = emulation.waits
        for i in range(7):
            collection.update(torch.full((2,), float(i), device="cuda"))
        assert emulation.waits == before
        collection._watchers[0].finish()
        assert logged == [(2, 0.5), (4, 2.5), (6, 4.5)]


def test_asynchronous_reductions_do_not_wait():
    with gapless.emulate() as emulation:
        dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
        try:
            collection = metrics.MetricCollection({"mean": metrics.MeanMetric(), "max": metrics.MaxMetric()})
            collection.to("cuda")
            pearson, logged = metrics.PearsonCorrCoef().to("cuda"), []
            collection.every(2, lambda update, results: logged.append(update), async_op=True)
            for _ in range(4):
                collection.update(torch.ones(4, device="cuda"))
                pearson.update(torch.rand(4, device="cuda"), torch.rand(4, device="cuda"))
            readings = [collection.read(async_op=True), pearson.read(async_op=True)]
            ready = [reading.ready() for reading in readings]
            assert emulation.waits == 0, emulation.session.sites
        finally:
            dist.destroy_process_group()
        assert ready == [True, True]
        assert logged == [2, 4]
        assert readings[0].result()["mean"].item() == 1
