"""`unwait`: objects stay what they were, copies and pickles too, and there is a way back."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from metrics.own_metrics import Weighted
from metrics.unwaiting import QUIET, assert_same
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics import classification as tc
from torchmetrics.aggregation import MaxMetric, MeanMetric, SumMetric
from torchmetrics.wrappers import MinMaxMetric, Running

from gapless.metrics.torchmetrics import rewait, unwait
from gapless.metrics.torchmetrics._metric import UnwaitedMetric

NAN = float("nan")

pytestmark = QUIET


def trained(metric: Any) -> Any:
    metric.update(torch.tensor([1.0, 2.0]))
    return metric


@pytest.mark.parametrize(
    "make", [MeanMetric, lambda: MetricCollection([MeanMetric(), SumMetric()]), Weighted]
)
def test_copies_and_pickles_are_unwaited_too(make: Callable[[], Any]) -> None:
    metric = make()
    unwait(metric)
    trained(metric)
    file = io.BytesIO()
    torch.save(metric, file)
    file.seek(0)
    copies = [copy.deepcopy(metric), metric.clone(), pickle.loads(pickle.dumps(metric))]
    copies.append(torch.load(file, weights_only=False))
    for copied in copies:
        assert type(copied) is type(metric)
        assert_same(copied.compute(), metric.compute())
        copied.update(torch.tensor([NAN, 6.0]))
        with pytest.warns(UserWarning, match="1 value was `nan`"):
            copied.compute()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(metric).compute()


def test_unreported_checks_are_copied_with_a_metric() -> None:
    metric = MeanMetric(nan_strategy="error")
    unwait(metric)
    metric.update(torch.tensor([1.0, NAN]))
    with pytest.raises(RuntimeError, match="1 value was"):
        pickle.loads(pickle.dumps(metric)).compute()


def test_another_process_reads_the_pickle(tmp_path: Path, python: Callable[..., Any]) -> None:
    metric = tc.MulticlassAccuracy(3)
    unwait(metric)
    metric.update(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1]))
    path = tmp_path / "metric"
    path.write_bytes(pickle.dumps(metric))
    code = (
        f"import pickle; m = pickle.load(open({str(path)!r}, 'rb')); "
        "print(float(m.compute()), m._unwaited_checks.delivery)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    value, delivery = done.stdout.split()
    assert float(value) == pytest.approx(float(metric.compute()))
    assert delivery == "compute"


def test_name_class_states_and_device_stay() -> None:
    metric = tc.MulticlassAccuracy(3)
    metric.persistent(True)
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
    before, text = metric.state_dict(), repr(metric)
    unwait(metric)
    assert isinstance(metric, tc.MulticlassAccuracy)
    assert type(metric).__name__ == "MulticlassAccuracy"
    assert repr(metric) == text
    assert_same(metric.state_dict(), before)
    metric.load_state_dict(before)
    metric.to("cpu").set_dtype(torch.float64)
    assert metric.update_count == 1
    plain = tc.MulticlassAccuracy(3)
    plain.update(torch.tensor([2]), torch.tensor([2]))
    metric.merge_state(plain)
    assert metric.tp.sum() == 3


def test_undo() -> None:
    module = nn.ModuleDict({"a": MeanMetric(nan_strategy="error"), "b": tc.BinaryAccuracy()})
    classes = [type(metric) for metric in module.values()]
    report = unwait(module)
    trained(module["a"])
    report.undo()
    assert [type(metric) for metric in module.values()] == classes
    assert not any(name.startswith("_unwaited") for metric in module.values() for name in vars(metric))
    with pytest.raises(RuntimeError, match="nan"):
        module["a"].update(torch.tensor([NAN]))
    assert module["a"].compute() == 1.5


def test_rewait_undoes_copies_and_what_a_pickle_held() -> None:
    metrics = MetricCollection([MeanMetric(), tc.BinaryAccuracy()])
    plain = MetricCollection([MeanMetric(), tc.BinaryAccuracy()])
    unwait(metrics)
    for collection in (copy.deepcopy(metrics), pickle.loads(pickle.dumps(metrics)), metrics):
        rewait(collection)
        assert type(collection) is MetricCollection
        assert [type(metric) for metric in collection.values()] == [MeanMetric, tc.BinaryAccuracy]
        assert vars(collection).keys() == vars(plain).keys()
        for metric, other in zip(collection.values(), plain.values(), strict=True):
            assert vars(metric).keys() == vars(other).keys()
            assert not isinstance(metric, UnwaitedMetric)


def test_rewait_leaves_what_waits_alone() -> None:
    metric = MeanMetric()
    before = dict(vars(metric))
    rewait(metric)
    assert vars(metric) == before


def test_within_a_block() -> None:
    metric = MeanMetric(nan_strategy="error")
    with unwait(metric) as report:
        assert len(report) == 1
        metric.update(torch.tensor([1.0, 2.0]))
        assert isinstance(metric, UnwaitedMetric)
    assert type(metric) is MeanMetric
    with pytest.raises(RuntimeError, match="nan"):
        metric.update(torch.tensor([NAN]))
    assert metric.compute() == 1.5


def test_undo_tells_what_was_counted() -> None:
    metric = MeanMetric(nan_strategy="error")
    report = unwait(metric)
    metric.update(torch.tensor([NAN, 1.0]))
    with pytest.warns(UserWarning, match="1 value was `nan`"):
        report.undo()


def test_twice_is_once() -> None:
    metric = MeanMetric()
    unwait(metric)
    cls = type(metric)
    unwait(metric, checks="off")
    assert type(metric) is cls
    metric.update(torch.tensor([NAN, 1.0]))
    assert metric.compute() == 1.0


def test_what_was_replaced_on_the_object_is_left_alone() -> None:
    metric = MeanMetric()
    calls = []
    metric.update = lambda value: calls.append(value)
    report = unwait(metric)
    metric.update(1.0)
    assert calls == [1.0]
    assert "replaced on the object" in str(report)


def test_other_metrics_of_the_class_are_not_touched() -> None:
    unwait(MeanMetric(nan_strategy="error"))
    with pytest.raises(RuntimeError, match="nan"):
        MeanMetric(nan_strategy="error").update(torch.tensor([NAN]))


def test_containers_wrappers_and_compositions() -> None:
    inner = tc.MulticlassAccuracy(3)
    things = {
        "list": [MinMaxMetric(inner)],
        "sum": MeanMetric() + SumMetric(),
        "run": Running(SumMetric(), 2),
    }
    report = unwait(things)
    paths = {change.path for change in report}
    assert {"list.0", "list.0._base_metric", "sum.metric_a", "sum.metric_b", "run.base_metric"} <= paths
    things["sum"].update(torch.tensor([1.0, 3.0]))
    assert things["sum"].compute() == 6.0
    for value in (1.0, 2.0, 3.0):
        things["run"].update(value)
    assert things["run"].compute() == 5.0


def test_what_is_added_to_a_collection_is_unwaited() -> None:
    metrics = MetricCollection([MeanMetric()])
    unwait(metrics, checks="off")
    metrics.add_metrics(SumMetric(nan_strategy="error"))
    metrics.update(torch.tensor([NAN, 2.0]))
    assert_same(metrics.compute(), {"MeanMetric": torch.tensor(2.0), "SumMetric": torch.tensor(2.0)})


def test_nothing_to_unwait() -> None:
    with pytest.warns(UserWarning, match="found no metric"):
        assert len(unwait(nn.Linear(2, 2))) == 0


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (MeanMetric, (torch.tensor([1.0, 2.0]),)),
        (MaxMetric, (torch.tensor([1.0, 2.0]),)),
        (lambda: tc.MulticlassF1Score(3), (torch.tensor([0, 1]), torch.tensor([0, 2]))),
        (torchmetrics.PearsonCorrCoef, (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]))),
    ],
)
def test_stable_states_keep_their_storages(make: Callable[[], Any], inputs: tuple[Tensor, ...]) -> None:
    plain, metric = make(), make()
    unwait(metric, stable_states=True)
    for each in (plain, metric):
        each.update(*inputs)
    where = {name: getattr(metric, name).data_ptr() for name in metric._defaults}
    for each in (plain, metric):
        each.update(*inputs)
        each(*inputs)
        each.compute()
    assert_same(plain.compute(), metric.compute())
    for each in (plain, metric):
        each.reset()
        each.update(*inputs)
    assert {name: getattr(metric, name).data_ptr() for name in metric._defaults} == where
    assert_same(plain.compute(), metric.compute())


@pytest.mark.parametrize("make", [MeanMetric, lambda: tc.MulticlassAccuracy(3)])
def test_a_compiled_program_can_update(make: Callable[[], Any]) -> None:
    values = []
    for change in (lambda metric: None, unwait):
        metric = make()
        change(metric)
        inputs = [torch.tensor([0.0, 1.0, 1.0])] if make is MeanMetric else [torch.tensor([0, 1, 2])] * 2

        def step(metric: Any = metric, inputs: list[Tensor] = inputs) -> None:
            metric.update(*inputs)

        compiled = torch.compile(step, backend="eager")
        for _ in range(2):
            compiled()
        values.append(metric.compute())
    assert_same(*values)
