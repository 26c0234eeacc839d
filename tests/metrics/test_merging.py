"""Checkpoints of several processes, joined, are the checkpoint of one that saw everything."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from metrics.samples import SAMPLES, Sample
from metrics.test_laws import quietly
from metrics.test_training import Clock
from metrics.test_values import same
from torch import nn

import gapless.metrics as metrics

# A window is of the last updates of one process: with several there is no one order.
NAMES = sorted({sample.name for sample in SAMPLES} - {"RunningMean", "RunningSum"})


def saved(sample: Sample, seeds: Any) -> dict[str, Any]:
    metric = sample.make()
    metric.persistent(True)
    for seed in seeds:
        quietly(metric.update, *sample.data(seed))
    return metric.state_dict()


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_is_what_one_process_would_have_seen(name: str):
    for sample in SAMPLES:
        if sample.name != name:
            continue
        states = [saved(sample, seeds) for seeds in ((), (0, 1), (), (2,), (3,))]
        whole, single = sample.make(), sample.make()
        whole.persistent(True)
        whole.load_state_dict(metrics.merge_states(whole, states))
        for seed in range(4):
            quietly(single.update, *sample.data(seed))
        assert same(quietly(whole.compute), quietly(single.compute)), sample.label
        quietly(whole.update, *sample.data(4))
        quietly(single.update, *sample.data(4))
        assert same(quietly(whole.compute), quietly(single.compute)), sample.label


class Model(nn.Module):
    """A model with metrics that share statistics, and one whose statistics are at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.scores = metrics.MetricCollection(
            {"f1": metrics.MulticlassF1Score(3), "recall": metrics.MulticlassRecall(3)}
        )
        self.best = metrics.MaxMetric()
        for metric in (self.scores, self.best):
            metric.persistent(True)


def test_metrics_in_a_model():
    models = [Model() for _ in range(3)]
    for i, model in enumerate(models):
        model.scores.update(torch.tensor([i, 1]), torch.tensor([i, 2]))
        model.best.update(float(-i))
    module = Model()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    merged = metrics.merge_states(module, [model.state_dict() for model in models])
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    module.load_state_dict(merged)
    whole = metrics.MulticlassF1Score(3)
    whole.update(torch.tensor([0, 1, 1, 1, 2, 1]), torch.tensor([0, 2, 1, 2, 2, 2]))
    assert module.scores.compute()["f1"] == whole.compute()
    assert module.best.compute().item() == 0.0
    assert torch.equal(module.layer.weight, models[0].layer.weight)


def test_one_state_comes_back_as_it_is():
    for sample in SAMPLES:
        if sample.name in ("MeanMetric", "PearsonCorrCoef", "CatMetric", "MulticlassAUROC"):
            state = saved(sample, (0, 1))
            merged = metrics.merge_states(sample.make(), [state])
            assert merged.keys() == state.keys()
            assert all(torch.equal(merged[name], state[name]) for name in state), sample.label


def test_rows_left_out_stay_left_out_and_known():
    states = []
    for i in range(2):
        metric = metrics.SpearmanCorrCoef(capacity=3)
        metric.persistent(True)
        with warnings.catch_warnings(), pytest.raises(RuntimeError, match="Dropped 2 rows"):
            metric.update(torch.arange(5.0) + i, torch.arange(5.0))
        states.append(metric.state_dict())
    whole = metrics.SpearmanCorrCoef(capacity=3)
    whole.load_state_dict(metrics.merge_states(whole, states))
    assert whole.pairs.valid_rows("preds").tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="Dropped 7 rows"):
        whole.check()


def test_a_rate_is_that_of_one_process_until_it_is_reduced():
    states = []
    for seconds in (2.0, 4.0):
        clock = Clock()
        speed = metrics.Throughput(clock)
        speed.persistent(True)
        for at in (0.0, seconds):
            clock.now = clock.ends = at
            speed.update(12)
        states.append(speed.state_dict())
    whole = metrics.Throughput(Clock())
    whole.load_state_dict(metrics.merge_states(whole, states))
    assert whole.compute().item() == 4.0


def test_what_cannot_be_merged():
    metric = metrics.MeanMetric()
    with pytest.raises(ValueError, match="at least one process"):
        metrics.merge_states(metric, [])
    metric.persistent(True)
    with pytest.raises(KeyError, match=r"process 1 have no entries under 'weighted\.'"):
        metrics.merge_states(metric, [metric.state_dict(), {}])
    assert metrics.merge_states(metric, [{"other": 1}, {"other": 2}]) == {"other": 1}
