"""Metrics together: what is shared, what is not, and what the results are called."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gapless
import gapless.metrics as metrics


class Operators(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def batch(seed: int = 0, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(9, classes, generator=random), torch.randint(0, classes, (9,), generator=random)


def several() -> list[metrics.Metric]:
    return [
        metrics.MulticlassAccuracy(4, average="micro"),
        metrics.MulticlassPrecision(4),
        metrics.MulticlassRecall(4, average="none"),
        metrics.MulticlassF1Score(4, average="weighted", validate_args=False),
    ]


def test_one_statistic_for_all_and_one_argmax():
    with gapless.emulate():
        collection, single = metrics.MetricCollection(several()).to("cuda"), several()[0].to("cuda")
        assert list(collection.compute_groups.values()) == [[name] for name in collection]
        data = [value.to("cuda") for value in batch()]
        with Operators() as together:
            collection.update(*data)
        assert list(collection.compute_groups.values()) == [list(collection)]
        with Operators() as alone:
            single.update(*data)
        assert together.seen == alone.seen
        assert together.seen.count("argmax") == 1
        collection.add_metrics(metrics.MulticlassConfusionMatrix(4).to("cuda"))
        with Operators() as more:
            collection.update(*data)
        assert more.seen.count("argmax") == 1


def test_results_are_those_of_each_alone():
    collection, alone = metrics.MetricCollection(several()), several()
    for seed in range(3):
        whole = collection(*batch(seed))
        for metric in alone:
            torch.testing.assert_close(whole[type(metric).__name__], metric(*batch(seed)))
    for metric in alone:
        torch.testing.assert_close(collection.compute()[type(metric).__name__], metric.compute())
    collection.reset()
    collection.update(*batch(7))
    for metric in alone:
        metric.reset()
        metric.update(*batch(7))
        torch.testing.assert_close(collection.compute()[type(metric).__name__], metric.compute())


def test_a_member_that_goes_its_own_way_takes_its_state_along():
    collection = metrics.MetricCollection(several())
    collection.update(*batch(0))
    member = collection["MulticlassPrecision"]
    member.update(*batch(1))
    both, first = metrics.MulticlassPrecision(4), metrics.MulticlassRecall(4, average="none")
    both.update(*batch(0))
    both.update(*batch(1))
    first.update(*batch(0))
    torch.testing.assert_close(member.compute(), both.compute())
    torch.testing.assert_close(collection.compute()["MulticlassRecall"], first.compute())
    collection.update(*batch(2))
    both.update(*batch(2))
    first.update(*batch(2))
    results = collection.compute()
    torch.testing.assert_close(results["MulticlassPrecision"], both.compute())
    torch.testing.assert_close(results["MulticlassRecall"], first.compute())


def test_arguments_by_name_go_where_they_are_known():
    collection = metrics.MetricCollection(
        {
            "loss": metrics.MeanMetric(),
            "accuracy": metrics.MulticlassAccuracy(4),
            "mse": metrics.MeanSquaredError(),
        }
    )
    preds, target = batch()
    collection["mse"].update(torch.ones(2), torch.zeros(2))
    both = metrics.MetricCollection({"loss": metrics.MeanMetric(), "accuracy": metrics.MulticlassAccuracy(4)})
    both.update(value=2.0, preds=preds, target=target)
    both.update(target=target, preds=preds, value=4.0, weight=3.0)
    assert both.compute()["loss"].item() == 3.5
    with pytest.raises(TypeError, match="misses the argument `value`"):
        both.update(preds=preds, target=target)
    with pytest.raises(TypeError, match="takes 2 arguments"):
        both.update(preds, target, 1.0)


def test_names():
    collection = metrics.MetricCollection(
        {"b": metrics.MeanMetric(), "a": metrics.SumMetric()}, prefix="train/", postfix="_x"
    )
    collection.update(2.0)
    assert (
        list(collection.compute())
        == ["train/a_x", "train/b_x"]
        == list(collection)
        == list(collection.keys())
    )
    assert list(collection.keys(keep_base=True)) == ["a", "b"]
    other = collection.clone(prefix="val/")
    assert list(other.compute()) == ["val/a_x", "val/b_x"]
    other.update(4.0)
    assert collection.compute()["train/a_x"].item() == 2
    assert collection["train/a_x"] is collection["a"]
    nested = metrics.MetricCollection({"x": collection, "y": metrics.MaxMetric()})
    assert list(nested) == ["x_train/a_x", "x_train/b_x", "y"]
    classes = metrics.ClasswiseWrapper(metrics.MulticlassAccuracy(2, average="none"), labels=["cat", "dog"])
    results = metrics.MetricCollection({"accuracy": classes})(torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert {name: value.item() for name, value in results.items()} == {
        "multiclassaccuracy_cat": 0.5,
        "multiclassaccuracy_dog": 0.0,
    }


def test_members_come_and_go():
    collection = metrics.MetricCollection(metrics.MulticlassAccuracy(4))
    collection.update(*batch())
    collection.add_metrics({"recall": metrics.MulticlassRecall(4)})
    collection.update(*batch(1))
    late = metrics.MulticlassRecall(4)
    late.update(*batch(1))
    torch.testing.assert_close(collection.compute()["recall"], late.compute())
    del collection["recall"]
    collection.update(*batch())
    assert list(collection) == ["MulticlassAccuracy"]


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (lambda: [[metrics.MeanMetric(), metrics.MeanMetric()]], {}, "two metrics both named MeanMetric"),
        (lambda: [{"a": 1}], {}, "Value 1 belonging to key a is not an instance"),
        (lambda: [[torch.nn.Linear(1, 1)]], {}, "Input .* to `MetricCollection` is not a instance"),
        (lambda: [{"a": metrics.MeanMetric()}, metrics.SumMetric()], {}, "not compatible with the first"),
        (lambda: [3], {}, "Unknown input to MetricCollection"),
        (lambda: [metrics.MeanMetric()], {"prefix": 1}, "Expected input `prefix` to be a string"),
        (lambda: [metrics.MeanMetric()], {"compute_groups": [["Mean"]]}, "Input Mean in `compute_groups`"),
    ],
    ids=["twice", "value", "module", "mapping", "unknown", "prefix", "groups"],
)
def test_what_is_refused(arguments, options, said):
    with pytest.raises(ValueError, match=said):
        metrics.MetricCollection(*arguments(), **options)


def test_arguments_that_are_no_metrics_are_reported_and_ignored():
    mean = metrics.MeanMetric()
    with pytest.warns(UserWarning, match="not `Metric` so they will be ignored"):
        assert list(metrics.MetricCollection(mean, [mean])) == ["MeanMetric"]


def test_copies_keep_what_is_shared_and_are_apart():
    collection = metrics.MetricCollection(several())
    collection.update(*batch())
    for copied in (copy.deepcopy(collection), pickle.loads(pickle.dumps(collection)), collection.clone()):
        assert copied.compute_groups == collection.compute_groups
        before = collection.compute()
        copied.update(*batch(1))
        torch.testing.assert_close(collection.compute(), before)


def test_a_collection_in_a_model_is_saved_with_it():
    model, other = (torch.nn.ModuleDict({"metrics": metrics.MetricCollection(several())}) for _ in range(2))
    assert not model.state_dict()
    for module in (model, other):
        module["metrics"].persistent()
    model["metrics"].update(*batch())
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other["metrics"].compute(), model["metrics"].compute())


def test_readings_on_the_cpu_are_there_at_once():
    collection = metrics.MetricCollection(several())
    logged: list[tuple[int, float]] = []
    collection.every(3, lambda update, results: logged.append((update, results["MulticlassAccuracy"].item())))
    for seed in range(6):
        collection.update(*batch(seed))
    assert [update for update, _ in logged] == [3, 6]
    assert logged[-1][1] == pytest.approx(collection.compute()["MulticlassAccuracy"].item())
    reading = collection.read()
    assert reading.ready()
    torch.testing.assert_close(reading.result(), collection.compute())
    with pytest.raises(ValueError, match="positive number"):
        collection.every(0, print)


def test_a_reading_can_be_awaited():
    import asyncio

    mean = metrics.MeanMetric()
    mean.update(3.0)

    async def read() -> float:
        return float(await mean.read())

    assert asyncio.run(read()) == 3.0


def test_readings_of_forward_are_of_all_batches():
    logged = []
    collection = metrics.MetricCollection({"mean": metrics.MeanMetric(), "sum": metrics.SumMetric()})
    collection.every(
        2, lambda update, results: logged.append((update, results["mean"].item(), results["sum"].item()))
    )
    for value in (1.0, 2.0, 3.0, 6.0):
        assert collection(value)["sum"].item() == value
    assert logged == [(2, 1.5, 3.0), (4, 3.0, 12.0)]
    logged.clear()
    afresh = metrics.MetricCollection({"sum": metrics.SumMetric()})
    afresh.every(2, lambda update, results: logged.append(results["sum"].item()), reset=True)
    for value in (1.0, 2.0, 3.0, 6.0):
        afresh(value)
    assert logged == [3.0, 9.0]
