"""Bad values are counted where they are and told later; on the CPU, at once."""

from __future__ import annotations

import copy
import gc
import re
import warnings
from functools import partial
from typing import Any

import pytest
import torch

import gapless
import gapless.metrics as metrics
from gapless.metrics import functional, reading, statistic

NAN = float("nan")


@pytest.mark.parametrize(
    "kind", [metrics.MeanMetric, metrics.SumMetric, metrics.MaxMetric, metrics.MinMetric]
)
@pytest.mark.parametrize("value", [NAN, torch.tensor(NAN), torch.tensor([1.0, NAN])])
def test_nan_on_the_cpu(kind: Any, value: Any):
    with pytest.raises(RuntimeError, match=r"Encountered `nan` values in tensor: 1 of them"):
        kind(nan_strategy="error").update(value)
    with pytest.warns(UserWarning, match=r"Encountered `nan` values in tensor: 1 of them, left out"):
        kind(nan_strategy="warn").update(value)
    for strategy in ("ignore", "disable", 2.0):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            metric = kind(nan_strategy=strategy)
            metric.update(value)
            nothing_left = strategy == "ignore" and torch.as_tensor(value).numel() == 1
            empty_mean = nothing_left and kind is metrics.MeanMetric
            assert metric.compute().isnan().item() == (strategy == "disable" or empty_mean)


@pytest.mark.parametrize("strategy", [None, "mean", 3, True])
def test_other_strategies_are_refused(strategy):
    with pytest.raises(ValueError, match="nan_strategy"):
        metrics.MeanMetric(nan_strategy=strategy)


def test_nan_on_the_device_comes_with_the_reading():
    with gapless.emulate() as emulation:
        loss = metrics.MeanMetric(nan_strategy="error").to("cuda")
        clean, bad = torch.ones(4, device="cuda"), torch.full((3,), NAN, device="cuda")
        for value in (clean, clean, bad, clean):
            loss.update(value)
        reading = loss.read()
        assert emulation.waits == 0
        with pytest.raises(RuntimeError, match=r"MeanMetric: Encountered `nan` .*: 3 .*first in update 3"):
            reading.result()
        assert reading.result().item() == 1
        assert loss.read().result().item() == 1
        loss.update(bad)
        with pytest.raises(RuntimeError, match=r"Encountered `nan` values in tensor: 3 of them$"):
            loss.check()
        loss.check()


def test_bad_values_after_a_reading_are_not_lost():
    with gapless.emulate():
        loss = metrics.MeanMetric(nan_strategy="error").to("cuda")
        bad = torch.full((3,), NAN, device="cuda")
        loss.update(bad)
        first = loss.read()
        loss.update(bad)
        with pytest.raises(RuntimeError, match="tensor: 3 of them"):
            first.result()
        loss.reset()
        loss.update(2.0)
        with pytest.raises(RuntimeError, match="tensor: 3 of them"):
            loss.compute()
        assert loss.read().result().item() == 2


def test_forward_tells_too_and_keeps_what_was_good():
    mean = metrics.MeanMetric(nan_strategy="error")
    mean(torch.ones(2))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="tensor: 1 of them"):
            mean(torch.tensor([NAN, 3.0]))
    assert mean.compute().item() == 2
    collection = metrics.MetricCollection({"top1": metrics.MulticlassAccuracy(3)})
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^top1: Detected 1 value"):
            collection(torch.eye(3), torch.tensor([0, 1, 5]))


def test_a_collection_names_the_metrics():
    with gapless.emulate() as emulation:
        collection = metrics.MetricCollection(
            {
                "loss": metrics.MeanMetric(),
                "top1": metrics.MulticlassAccuracy(3),
                "f1": metrics.MulticlassF1Score(3, validate_args=False),
            }
        ).to("cuda")
        zero, wrong = (torch.full((2,), float(i), device="cuda") for i in (0, 7))
        collection.update(value=zero, preds=torch.eye(3, device="cuda")[:2], target=zero.long())
        collection.update(value=zero, preds=torch.eye(3, device="cuda")[:2], target=wrong.long())
        reading = collection.read()
        assert emulation.waits == 0
        with pytest.raises(
            RuntimeError, match=r"^f1, top1: Detected 2 values .* 0 to 2 \(first in update 2\)"
        ):
            reading.result()


CASES = [
    (lambda: metrics.MulticlassAccuracy(3), [0, 1, 2], [0, 1, 5]),
    (lambda: metrics.MulticlassAccuracy(3, ignore_index=-100), [0, 1, 2], [0, 1, -1]),
    (lambda: metrics.MulticlassAccuracy(3), [0, 1, -2], [0, 1, 2]),
    (lambda: metrics.MulticlassConfusionMatrix(3), [0, 1, 2], [0, 1, 3]),
    (lambda: metrics.MulticlassExactMatch(3), [0, 1, 2], [0, 1, 3]),
    (lambda: metrics.BinaryAccuracy(), [0, 1, 1], [0, 1, 2]),
    (lambda: metrics.BinaryAccuracy(ignore_index=-1), [0, 1, 3], [0, 1, -1]),
    (lambda: metrics.BinaryAUROC(thresholds=5), [0.1, 0.2, 0.3], [0, 1, 4]),
    (lambda: metrics.BinaryAUROC(), [0.1, 0.2, 0.3], [0, 1, 4]),
    (lambda: metrics.BinaryCalibrationError(), [0.1, 0.2, 0.3], [0, 1, 4]),
]


@pytest.mark.parametrize(("make", "preds", "target"), CASES)
def test_values_out_of_range(make: Any, preds: list[float], target: list[int]):
    metric = make()
    with pytest.raises(RuntimeError, match=r"Detected (1 (value|pair)|the following values in `\w+`)"):
        metric.update(torch.tensor(preds), torch.tensor(target))
    metric.check()
    metric.update(torch.tensor(preds[:2]), torch.tensor(target[:2]))


def test_without_checks_nothing_is_reported_or_written_elsewhere():
    metric = metrics.MulticlassAccuracy(3, validate_args=False)
    metric.update(torch.tensor([0, 1, 2]), torch.tensor([0, 10**6, -(10**6)]))
    metric.check()
    assert metric.counted.counts().tp.tolist() == [1, 0, 0]


def test_perplexity_of_tokens_outside_the_vocabulary():
    with pytest.raises(RuntimeError, match="1 token in `target` outside"):
        metrics.Perplexity().update(torch.randn(1, 2, 5), torch.tensor([[1, 5]]))


def test_rows_beyond_the_capacity_are_counted():
    metric = metrics.CatMetric(nan_strategy="error", capacity=4)
    with pytest.raises(RuntimeError, match=r"2 .*, or rows beyond the capacity of 4"):
        metric.update(torch.arange(6.0))
    assert metric.compute().tolist() == [0, 1, 2, 3]


SHAPES = [
    (metrics.MulticlassAccuracy(3), (4, 3), (5,), ValueError),
    (metrics.MulticlassAccuracy(3), (4, 2), (4,), ValueError),
    (metrics.MulticlassAccuracy(3), (4,), (4, 2, 2), ValueError),
    (metrics.BinaryAccuracy(), (4,), (3,), RuntimeError),
    (metrics.MultilabelAccuracy(3), (4, 2), (4, 2), ValueError),
    (metrics.BinaryAUROC(), (4,), (3,), RuntimeError),
    (metrics.MeanSquaredError(), (4,), (3,), RuntimeError),
    (metrics.PearsonCorrCoef(), (4, 2), (4, 2), ValueError),
    (metrics.CosineSimilarity(), (4,), (4,), ValueError),
    (metrics.Perplexity(), (4, 5), (4,), ValueError),
    (metrics.MeanIoU(3, input_format="index"), (2, 4, 4), (2, 4, 5), RuntimeError),
]


@pytest.mark.parametrize(("metric", "preds", "target", "error"), SHAPES)
def test_shapes_that_do_not_fit(metric: Any, preds: tuple[int, ...], target: tuple[int, ...], error: type):
    with pytest.raises(error, match=r"shape|dimension|number of|2D|num_outputs"):
        metric.update(torch.rand(preds), torch.zeros(target, dtype=torch.long))


OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("BinaryAccuracy", {"threshold": 2}, "threshold"),
    ("BinaryAccuracy", {"multidim_average": "all"}, "multidim_average"),
    ("BinaryAccuracy", {"ignore_index": "a"}, "ignore_index"),
    ("BinaryAccuracy", {"unknown": 1}, "Unexpected keyword arguments: `unknown`"),
    ("MulticlassAccuracy", {"num_classes": 1}, "num_classes"),
    ("MulticlassAccuracy", {"num_classes": None}, "num_classes"),
    ("MulticlassAccuracy", {"num_classes": 3, "top_k": 4}, "top_k"),
    ("MulticlassAccuracy", {"num_classes": 3, "average": "mean"}, "average"),
    ("MultilabelAccuracy", {"num_labels": 1}, "num_labels"),
    ("MulticlassFBetaScore", {"beta": -1.0, "num_classes": 3}, "beta"),
    ("MulticlassF1Score", {"num_classes": 3, "zero_division": 2}, "zero_division"),
    ("MulticlassConfusionMatrix", {"num_classes": 3, "normalize": "x"}, "normalize"),
    ("MulticlassCohenKappa", {"num_classes": 3, "weights": "x"}, "weight"),
    ("BinaryAUROC", {"thresholds": 1}, "thresholds"),
    ("BinaryAUROC", {"thresholds": [2.0]}, "thresholds"),
    ("BinaryAUROC", {"max_fpr": 2.0}, "max_fpr"),
    ("BinaryCalibrationError", {"n_bins": 0}, "n_bins"),
    ("BinaryCalibrationError", {"norm": "l3"}, "norm"),
    ("Accuracy", {"task": "regression"}, "(?i)binary.*multiclass.*multilabel"),
    ("Accuracy", {"task": "multiclass", "average": "macro"}, "num_classes"),
    ("MeanSquaredError", {"num_outputs": 0}, "num_outputs"),
    ("MinkowskiDistance", {"p": 0.5}, "p"),
    ("R2Score", {"adjusted": -1}, "adjusted"),
    ("R2Score", {"multioutput": "x"}, "multioutput"),
    ("CosineSimilarity", {"reduction": "max"}, "reduction"),
    ("Perplexity", {"ignore_index": 0.5}, "ignore_index"),
    ("MeanIoU", {"num_classes": 0}, "num_classes"),
    ("DiceScore", {"num_classes": 3, "input_format": "x"}, "input_format"),
    ("MeanMetric", {"sync_on_compute": 1}, "sync_on_compute"),
    ("CatMetric", {"capacity": 0}, "capacity"),
    ("RunningMean", {"window": 0}, "window"),
]


@pytest.mark.parametrize(("name", "options", "words"), OPTIONS)
def test_constructors_refuse(name: str, options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        getattr(metrics, name)(**options)


def wrong(device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    """Scores, and targets of which one is no class."""
    return torch.eye(3, device=device), torch.arange(3, device=device) * 2


def test_a_reset_loses_nothing():
    with gapless.emulate():
        mean = metrics.MeanMetric(nan_strategy="error").to("cuda")
        mean.update(torch.full((1,), NAN, device="cuda"))
        mean.reset()
        for count in (2, 3):
            mean.update(torch.full((count,), NAN, device="cuda"))
            with pytest.raises(RuntimeError, match=rf"{count - 1} of them \(first in update 1\)"):
                mean.reset()
        mean.update(2.5)
        with pytest.raises(RuntimeError, match=r"3 of them \(first in update 1\)"):
            mean.compute()
        assert mean.compute().item() == 2.5


@pytest.mark.parametrize("how", ["collection", "update", "graph", "compiled"])
def test_a_reset_after_a_reading_sends_for_what_came_in_between(how: str):
    """And for nothing where nothing came: what was counted is on its way already."""
    with gapless.emulate() as emulation:
        mean = metrics.MeanMetric(nan_strategy="error").to("cuda")
        counted = (
            metrics.MetricCollection([mean, metrics.SumMetric("disable")]) if how == "collection" else mean
        )
        value = torch.ones((), device="cuda")
        counted.update(value)
        step: Any = partial(counted.update, value)
        if how == "graph":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                counted.update(value)
            step = graph.replay
        elif how == "compiled":
            step = partial(torch.compile(counted.update, backend="eager"), value)
        step()
        counted.compute()
        before = len(reading.PENDING)
        counted.reset()
        assert how == "graph" or len(reading.PENDING) <= before  # of a replay nobody hears
        counted.update(value)
        counted.compute()
        value.fill_(NAN)
        step()
        counted.reset()
        counted.update(torch.ones((), device="cuda"))
        with pytest.raises(RuntimeError, match="1 of them"):
            counted.compute()
        assert emulation.waits == 0
    del mean, counted, step
    torch.compiler.reset()  # lets the metric go, of which the next test would hear
    gc.collect()


def test_other_metrics_report_a_deleted_metrics_errors():
    with gapless.emulate() as emulation:
        metrics.MulticlassRecall(3).to("cuda").update(*wrong())
        mean = metrics.MeanMetric().to("cuda")
        mean.update(torch.ones(2, device="cuda"))
        mean.compute()
        with pytest.warns(UserWarning, match=r"^MulticlassRecall: Detected 1 value"):
            mean.compute()
        mean.compute()
        assert emulation.waits == 0
        metrics.merge_states(mean, [mean.state_dict()])
        copy.deepcopy(metrics.MulticlassRecall(3, validate_args=False).to("cuda")).update(*wrong())
        assert not statistic.GONE or all(part.key == mean.weighted.key for part in statistic.GONE)


FUNCTIONS = [
    lambda device: functional.multiclass_accuracy(*wrong(device), 3),
    lambda device: functional.binary_auroc(torch.rand(3, device=device), wrong(device)[1]),
    lambda device: functional.perplexity(wrong(device)[0].unsqueeze(0), wrong(device)[1].unsqueeze(0)),
    lambda device: functional.mean_iou(*[wrong(device)[1].expand(2, 1, 3)] * 2, 3, input_format="index"),
    lambda device: functional.dice_score(*[wrong(device)[1].expand(2, 1, 3)] * 2, 3, input_format="index"),
]
FUNCTION_NAMES = ("multiclass_accuracy", "binary_auroc", "perplexity", "mean_iou", "dice_score")


@pytest.mark.parametrize(("call", "name"), list(zip(FUNCTIONS, FUNCTION_NAMES, strict=True)))
def test_functions_tell_at_a_later_call(call: Any, name: str):
    with pytest.raises(RuntimeError, match=rf"^{name}: Detected"):
        call("cpu")
    with gapless.emulate() as emulation:
        call("cuda")
        call("cuda")
        with pytest.raises(RuntimeError, match=rf"^{name}: Detected \d"):
            call("cuda")
        assert emulation.waits == 0
        statistic.GONE.clear()
        reading.PENDING.clear()
        with metrics.strict(), pytest.raises(RuntimeError, match=rf"{name}: Detected \d"):
            call("cuda")
        assert emulation.waits > 0


@pytest.mark.parametrize("forward", [False, True])
def test_strict_updates_tell_at_once_and_wait(forward: bool):
    with gapless.emulate() as emulation:
        several = {"top1": metrics.MulticlassAccuracy(3), "mean": metrics.MulticlassRecall(3)}
        for metric in (metrics.MulticlassAccuracy(3), metrics.MetricCollection(several)):
            metric.to("cuda")
            step = metric if forward else metric.update
            with metrics.strict():
                step(torch.eye(3, device="cuda"), torch.arange(3, device="cuda"))
                with pytest.raises(RuntimeError, match=r"Detected 1 value"):
                    step(*wrong())
            before = emulation.waits
            step(*wrong())
            assert emulation.waits == before
            with pytest.raises(RuntimeError, match=r"Detected 1 value"):
                metric.check()
        assert before > 0


SCRIPT = """
import torch, torchmetrics, gapless
import gapless.metrics as metrics
from gapless.metrics import functional
from gapless.metrics.torchmetrics import unwait

def main():
    with gapless.emulate():
        scores, target = torch.eye(3, device="cuda"), torch.arange(3, device="cuda") * 2
        kept, lost = metrics.MulticlassAccuracy(3).to("cuda"), metrics.MulticlassRecall(3).to("cuda")
        kept.update(scores, target)
        kept.reset()
        lost.update(scores, target)
        lost.compute()
        for _ in range(2):
            functional.multiclass_f1_score(scores, target, 3)
        read = metrics.MulticlassPrecision(3).to("cuda")
        read.update(scores, target)
        try:
            read.check()
        except RuntimeError:
            pass
        area = metrics.BinaryAUROC().to("cuda")
        area.update(torch.rand(3, device="cuda"), target)
        theirs = torchmetrics.MeanMetric().to("cuda")
        unwait(theirs, checks="later")
        theirs.update(torch.full((2,), float("nan"), device="cuda"))
        return kept, read, area

alive = main()
"""


def test_the_rest_is_reported_when_the_process_ends(write, python):
    write("script.py", SCRIPT)
    done = python("script.py")
    assert done.returncode == 0, done.stderr
    messages = sorted(re.split(r": Detected \d values? in ", line)[0] for line in done.stderr.splitlines())
    assert messages == [
        "gapless.metrics.torchmetrics: MeanMetric: 2 values were `nan`",
        "gapless.metrics: BinaryAUROC",
        "gapless.metrics: MulticlassAccuracy",
        "gapless.metrics: MulticlassRecall",
        "gapless.metrics: multiclass_f1_score",
    ]


PROCESSES = """
import multiprocessing, sys
import torch, gapless
import gapless.metrics as metrics

alive = []

def update(name):
    with gapless.emulate():
        metric = getattr(metrics, name)(3).to("cuda")
        metric.update(torch.eye(3, device="cuda"), torch.arange(3, device="cuda") * 2)
        alive.append(metric)

if __name__ == "__main__":
    update("MulticlassRecall")
    process = multiprocessing.get_context(sys.argv[1]).Process(target=update, args=("MulticlassAccuracy",))
    process.start()
    process.join()
    print("joined", file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("way", ["fork", "forkserver", "spawn"])
def test_processes_of_multiprocessing_tell_what_is_theirs(write, plain_python, way):
    write("script.py", PROCESSES)
    done = plain_python("script.py", way)
    assert done.returncode == 0, done.stderr
    messages = [line.partition(": Detected")[0] for line in done.stderr.splitlines()]
    assert messages == ["gapless.metrics: MulticlassAccuracy", "joined", "gapless.metrics: MulticlassRecall"]


def test_an_unreadable_end_does_not_hide_other_findings(monkeypatch, capsys):
    with gapless.emulate():
        broken, other = metrics.MulticlassAccuracy(3).to("cuda"), metrics.MulticlassRecall(3).to("cuda")
        for metric in (broken, other):
            metric.update(*wrong())
        monkeypatch.setattr(broken.counted, "fault_pieces", lambda: torch.zeros(2) @ torch.zeros(3))
        reading.report_at_exit()
        broken.counted.silent = True
    assert capsys.readouterr().err.startswith("gapless.metrics: MulticlassRecall: Detected 1 value")
