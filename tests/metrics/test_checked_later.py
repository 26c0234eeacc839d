"""Scores are kept as they come; what is bad among their targets is found when somebody may be told."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings

import pytest
import torch
from metrics.test_launches import launched
from torch import Tensor

import gapless
import gapless.metrics as metrics
from gapless.metrics.reading import report_gone


def scored(rows: int, bad: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(rows)
    target = torch.randint(0, 2, (rows,), generator=random)
    for number, row in enumerate(bad):
        target[row] = (-1, 2, torch.iinfo(torch.int64).min, 255)[number % 4]
    return torch.rand(rows, generator=random).to("cuda"), target.to("cuda")


@pytest.fixture(autouse=True)
def device():
    with gapless.emulate() as emulation:
        yield emulation


def test_few_kernels_keep_scores(device):
    exact, binned = metrics.BinaryAUROC().to("cuda"), metrics.BinaryAUROC(thresholds=200).to("cuda")
    for _ in range(3):
        exact.update(*scored(512))
        binned.update(*scored(512))
    batch, before = scored(512), device.waits
    assert launched(lambda: exact.update(*batch)) <= 6
    assert launched(lambda: binned.update(*batch)) <= 13
    assert launched(exact.compute) <= 27
    assert launched(binned.compute) <= 13
    assert launched(exact.reset) <= 1
    assert device.waits == before


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (5, 9, 0, 3, 7), (1, 300, 2)])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_update_is_the_first_that_met_one(sizes, at):
    metric = metrics.BinaryAUROC().to("cuda")
    number = [i for i, size in enumerate(sizes) if size][at]
    for i, size in enumerate(sizes):
        metric.update(*scored(size, bad=(size - 1,) if size and i >= number else ()))
        if i == 0 and at:
            metric.check()  # what was looked at stays looked at
    count = sum(1 for i, size in enumerate(sizes) if i >= number and size)
    message = rf"Detected {count} values? in `target` outside 0 to 1 \(first in update {number + 1}\)"
    with pytest.raises(RuntimeError, match=message):
        metric.check()
    metric.check()
    metric.update(*scored(4, bad=(0, 1)))
    with pytest.raises(RuntimeError, match=r"Detected 2 values in `target` outside 0 to 1$"):
        metric.check()


@pytest.mark.parametrize("task", ["binary", "multilabel", "multiclass"])
@pytest.mark.parametrize("ignored", [None, -1, 255])
def test_bad_values_do_not_count(task, ignored):
    """Nor is what is ignored bad."""
    classes, rows = {"binary": 1, "multilabel": 3, "multiclass": 3}[task], 40
    options = {} if task == "binary" else {"num_labels" if task == "multilabel" else "num_classes": classes}
    scores = torch.rand(rows, classes).softmax(1) if classes > 1 else torch.rand(rows, 1)
    scores = scores[:, 0] if task == "binary" else scores
    target = torch.randint(
        0, 3 if task == "multiclass" else 2, (rows, classes) if task == "multilabel" else (rows,)
    )
    good = target.clone()
    good[3:6] = target[3:6] = 0 if ignored is None else ignored
    target[:2] = 7
    both = [metrics.AUROC(task=task, ignore_index=ignored, **options).to("cuda") for _ in range(2)]
    both[0].update(scores[2:].to("cuda"), good[2:].to("cuda"))
    both[1].update(scores.to("cuda"), target.to("cuda"))
    torch.testing.assert_close(both[1].compute().cpu(), both[0].compute().cpu())
    both[0].check()
    with pytest.raises(RuntimeError, match=f"Detected {2 * (classes if task == 'multilabel' else 1)} values"):
        both[1].check()


@pytest.mark.parametrize("how", ["copied", "pickled", "saved", "merged", "moved"])
def test_unreported_errors_are_copied(how):
    metric = metrics.BinaryAveragePrecision().to("cuda")
    metric.persistent(True)
    metric.update(*scored(6, bad=(2,)))
    other = metrics.BinaryAveragePrecision().to("cuda")
    if how == "copied":
        other = copy.deepcopy(metric)
    elif how == "pickled":
        other = pickle.loads(pickle.dumps(metric.cpu())).to("cuda")
    elif how == "saved":
        other.load_state_dict(metric.state_dict())
    elif how == "merged":
        other.update(*scored(4))
        other.merge_state(metric)
    else:
        other = metric.cpu()
    with pytest.raises(RuntimeError, match="Detected 1 value"):
        other.check()
    other.check()


def test_a_reset_loses_nothing():
    metric = metrics.BinaryAUROC().to("cuda")
    metric.update(*scored(6, bad=(2,)))
    metric.reset()
    metric.update(*scored(6))
    with pytest.raises(RuntimeError, match=r"Detected 1 value .*first in update 1"):
        metric.compute()


def test_of_a_metric_that_is_gone_others_tell():
    metric = metrics.BinaryAUROC().to("cuda")
    metric.update(*scored(6))
    metric.update(*scored(6, bad=(1, 2)))
    del metric
    gc.collect()
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        for _ in range(2):
            report_gone()
    assert [str(warning.message) for warning in recorded] == [
        "BinaryAUROC: Detected 2 values in `target` outside 0 to 1 (first in update 2)"
    ]


def test_forward_tells_and_strict_updates_raise():
    metric = metrics.BinaryAUROC().to("cuda")
    with metrics.strict():
        metric.update(*scored(6))
        with pytest.raises(RuntimeError, match="first in update 2"):
            metric.update(*scored(7, bad=(0,)))
    metric.reset()
    metric(*scored(6))
    metric(*scored(6, bad=(5,)))
    with pytest.raises(RuntimeError, match="first in update 2"):
        metric.check()
