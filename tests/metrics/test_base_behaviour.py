"""What holds for the metrics a user writes or derives, and for what surrounds them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from metrics.declaring_metrics import Kept, Kinds, Mergeable, Stacked, Total
from metrics.samples import SAMPLES, Sample
from metrics.test_values import same
from torch import tensor

import gapless
import gapless.metrics as metrics
from gapless.metrics.update_history import UpdateHistory

NAMES = sorted({sample.name for sample in SAMPLES})
quiet = pytest.mark.filterwarnings("ignore::UserWarning")


def of(name: str) -> list[Sample]:
    return [sample for sample in SAMPLES if sample.name == name]


# States that a class declares.


def test_states_are_attributes_with_defaults():
    metric = Kinds()
    assert set(metric.metric_state) == {"count", "mean", "high", "low", "product"}
    metric.update(3.0)
    assert (metric.count, metric.high, metric.update_count, metric.update_called) == (1, 3.0, 1, True)
    metric.reset()
    assert (metric.count, metric.high, metric.update_count, metric.update_called) == (0, -torch.inf, 0, False)
    rows = Kept()
    rows.update(torch.ones(2))
    held = rows.rows
    rows.reset()
    assert held == rows.rows == []


@pytest.mark.parametrize(
    ("default", "reduction", "said"),
    [
        (tensor(0), "median", "must be callable or one of"),
        (tensor(0), 3, "must be callable or one of"),
        ([tensor(0)], "cat", "a tensor or any empty list"),
        (0, "sum", "a tensor or any empty list"),
    ],
)
def test_states_that_are_refused(default, reduction, said):
    with pytest.raises(ValueError, match=said):
        Total().add_state("other", default, reduction)


@pytest.mark.parametrize("kind", [Total, Mergeable])
def test_forward_is_the_batch_and_adds_it(kind):
    metric = kind()
    assert [metric(value).item() for value in (2.0, 5.0)] == [2.0, 5.0]
    assert (metric.compute().item(), metric.update_count) == (7.0, 2)
    # Unless a class says that batches can be added up, what an update does may depend on those before.
    assert metric.calls == (4 if kind is Total else 2)
    assert metric._forward_cache == 5.0
    metric.reset()
    assert metric._forward_cache is None


def test_forward_merges_every_kind():
    metric = Kinds()
    for value in (4.0, 1.0):
        metric(value)
    assert metric.compute() == [2, 2.5, 4.0, 1.0, 4.0]


def test_an_update_that_fails_leaves_what_was_there():
    metric = Mergeable()
    metric.update(2.0)
    with pytest.raises(TypeError):
        metric("nothing to add")
    assert metric.compute() == 2.0


def test_results_are_kept_until_the_next_update():
    metric, forgetful = Total(), Total(compute_with_cache=False)
    for total in (metric, forgetful):
        total.update(1.0)
        before = total.compute()
        total.total += 10
        assert total.compute() == (1.0 if total is metric else 11.0)
        total.update(1.0)
        assert before == 1.0
        assert total.compute() == 12.0


def test_only_forward_has_gradients():
    metric = Mergeable()
    value = tensor(2.0, requires_grad=True)
    result = metric(value)
    result.backward()
    assert value.grad == 1.0
    assert not metric.total.requires_grad
    metric.update(value)
    assert not metric.total.requires_grad


@pytest.mark.parametrize("kind", [Total, Kept])
def test_copies_and_checkpoints(kind):
    metric = kind()
    metric.update(torch.ones(1))
    assert not metric.state_dict()
    for copied in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone()):
        copied.update(torch.ones(1))
        assert (copied.compute().sum(), metric.compute().sum()) == (2, 1)
    metric.persistent(True)
    model, other = torch.nn.ModuleDict({"m": metric}), torch.nn.ModuleDict({"m": kind()})
    assert list(model.state_dict()) == ["m.total" if kind is Total else "m.rows"]
    other.load_state_dict(model.state_dict())
    assert torch.equal(other["m"].compute(), metric.compute())


def test_metrics_that_earlier_versions_saved_whole_still_load():
    collection = metrics.MetricCollection({"total": metrics.SumMetric()})
    saved = [metrics.SumMetric(), Total(), collection]
    for metric in saved:
        metric.update(torch.ones(3))
    for metric in (*saved[:2], collection["total"]):
        state = vars(metric)
        state["_ledger"], state["_lender"] = state.pop("_history"), state.pop("_collection")
    vars(collection)["_ledger"] = vars(collection).pop("update_history")
    text = pickle.dumps(saved, protocol=2)  # names classes in lines
    today = f"c{UpdateHistory.__module__}\n{UpdateHistory.__name__}\n".encode()
    assert today in text
    loaded = pickle.loads(text.replace(today, b"cgapless.metrics.ledger\nLedger\n"))
    assert [metric.compute().sum() for metric in loaded[:2]] == [3, 3]
    assert [metric.update_count for metric in loaded[:2]] == [1, 1]
    assert loaded[2].compute() == {"total": 3}
    loaded[2].update(torch.ones(1))
    assert loaded[2].compute() == {"total": 4}


def test_dtypes_change_only_where_it_is_meant():
    metric = Total()
    for cast in ("half", "double", "float"):
        assert getattr(metric, cast)() is metric
    assert metric.type(torch.half).total.dtype == torch.float32
    assert metric.set_dtype(torch.float64).total.dtype == torch.float64
    metric.reset()
    assert (metric.total.dtype, metric.dtype) == (torch.float64, torch.float64)
    assert metric.to("meta").total.device.type == metric.device.type == "meta"


def test_declared_states_follow_the_module_and_say_where_it_is_not():
    with gapless.emulate() as emulation:
        metric = Total().to("cuda")
        metric.update(torch.ones((), device="cuda"))
        metric.compute()
        assert (metric.total.device.type, emulation.waits) == ("cuda", 0)
        with pytest.raises(RuntimeError, match="not being on the same device as input"):
            Stacked().update(torch.ones(3, device="cuda"))


def test_a_metric_without_an_update_warns():
    with pytest.warns(UserWarning, match=r"The ``compute`` method of metric Total was called before"):
        Total().compute()
    with pytest.warns(UserWarning, match="MetricCollection was called before"):
        metrics.MetricCollection(Total()).compute()


# Beside the metrics of this package.


def test_declared_and_counted_metrics_in_a_collection():
    collection = metrics.MetricCollection(
        {"own": Total(), "sum": metrics.SumMetric(), "kept": Kept()}, prefix="p/"
    )
    values = torch.tensor([1.0, 2.0])
    for value in values:
        results = collection(value)
        assert results["p/own"] == results["p/sum"] == results["p/kept"] == value
    results = collection.compute()
    assert (results["p/own"], results["p/sum"], results["p/kept"].tolist()) == (3, 3, [1, 2])
    assert collection.metric_state["p/own"] == {"total": tensor(3.0)}
    collection.reset()
    collection.update(5.0 * values[0])
    assert (collection.compute()["p/own"], collection["own"].update_count) == (5, 1)
    assert len(collection.compute_groups) == 3


def test_each_member_gets_the_arguments_it_knows():
    class Pairs(Total):
        def update(self, *values: Any, scale: float) -> None:
            self.total = self.total + scale * sum(values)

    collection = metrics.MetricCollection(Pairs(), metrics.MeanSquaredError())
    results = collection(tensor(3.0), tensor(1.0), scale=2.0)
    assert (results["Pairs"], results["MeanSquaredError"]) == (8.0, 4.0)
    assert Total()._filter_kwargs(value=1, other=2) == {"value": 1}
    with pytest.raises(TypeError, match="misses the argument `scale`"):
        collection.update(tensor(3.0), tensor(1.0))


def test_names_where_results_are_dicts():
    class Both(Total):
        def compute(self) -> Any:
            return {"one": self.total, "two": 2 * self.total}

    alone = metrics.MetricCollection({"a": Both(), "b": Total()}, postfix="!")
    assert set(alone(1.0)) == {"one!", "two!", "b!"}
    twice = metrics.MetricCollection({"a": Both(), "b": Both()})
    assert set(twice(1.0)) == {"a_one", "a_two", "b_one", "b_two"}
    nested = metrics.MetricCollection(metrics.MetricCollection({"a": Both()}, prefix="in/"), prefix="out/")
    assert set(nested(1.0)) == {"out/in/one", "out/in/two"}


def test_arithmetic_of_declared_and_counted_metrics():
    own, counted = Total(), metrics.SumMetric()
    combined = own + 2 * counted
    assert [combined(value).item() for value in (1.0, 2.0)] == [3.0, 6.0]
    assert combined.compute() == 9.0
    combined.reset()
    assert (own.total, counted.update_called) == (0, False)


def test_wrappers_of_declared_metrics():
    running, extremes = metrics.Running(Mergeable(), 2), metrics.MinMaxMetric(Total())
    for value in (1.0, 2.0, 4.0):
        assert running(value) == value
        extremes.update(value)
        results = extremes.compute()
    assert running.compute() == 6.0
    assert {name: value.item() for name, value in results.items()} == {"raw": 7.0, "max": 7.0, "min": 1.0}
    with pytest.raises(ValueError, match="`full_state_update` set to `False`"):
        metrics.Running(Total())
    bootstrap = metrics.BootStrapper(Kept(), num_bootstraps=3, raw=True)
    bootstrap.update(torch.ones(4))
    assert bootstrap.compute()["raw"].tolist() == [[1.0] * 4] * 3


# Subclasses of this package's metrics.


class Percent(metrics.MulticlassAccuracy):
    def compute(self) -> torch.Tensor:
        return 100 * super().compute()


class FromZero(metrics.MulticlassAccuracy):
    """Its labels begin with one."""

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        super().update(preds - 1, target - 1)


def test_a_subclass_may_compute_otherwise():
    preds, target = tensor([0, 1, 2, 2]), tensor([0, 1, 1, 2])
    metric, plain = Percent(3), metrics.MulticlassAccuracy(3)
    assert metric(preds, target) == 100 * plain(preds, target)
    assert metric.compute() == 100 * plain.compute()
    collection = metrics.MetricCollection(Percent(3), metrics.MulticlassAccuracy(3))
    collection.update(preds, target)
    assert collection.compute()["Percent"] == 100 * collection.compute()["MulticlassAccuracy"]


def test_a_subclass_may_change_what_it_is_given():
    preds, target = tensor([1, 2, 3]), tensor([1, 2, 2])
    collection = metrics.MetricCollection(
        FromZero(3, average="micro"), metrics.MulticlassAccuracy(4, average="micro")
    )
    for results in (collection(preds, target), collection.compute()):
        assert results["FromZero"].item() == results["MulticlassAccuracy"].item() == pytest.approx(2 / 3)


# Adding up.


@quiet
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("Running")])
def test_merged_parts_are_the_whole(name):
    for sample in of(name):
        whole, first, other = sample.make(), sample.make(), sample.make()
        for seed, part in ((0, first), (1, other)):
            part.update(*sample.data(seed))
            whole.update(*sample.data(seed))
        before = other.compute()
        first.merge_state(other)
        assert same(first.compute(), whole.compute()), sample.label
        assert same(other.compute(), before), sample.label


def test_states_are_merged_by_name():
    for kind, states, whole in [
        (metrics.SumMetric, {"sum_value": tensor(2.0)}, 3.0),
        (metrics.MaxMetric, {"max_value": tensor(7.0)}, 7.0),
        (metrics.MeanMetric, {"mean_value": tensor(9.0), "weight": tensor(3.0)}, 2.5),
        (Mergeable, {"total": tensor(4.0)}, 5.0),
    ]:
        metric = kind()
        metric.update(1.0)
        metric.merge_state(states)
        assert metric.compute() == whole
        metric.merge_state(metric.clone().metric_state)


def test_what_cannot_be_merged():
    for metric, state, error, said in [
        (metrics.SumMetric(), 2, ValueError, "Expected incoming state to be a dict"),
        (
            metrics.SumMetric(),
            metrics.MeanMetric(),
            ValueError,
            "Expected incoming state to be an instance of",
        ),
        (metrics.SumMetric(), {}, ValueError, "to be present in incoming state"),
        (Mergeable(), {}, ValueError, "Expected state variable total"),
        (Total(), Total(), RuntimeError, "``merge_state`` is not supported"),
        (metrics.SumMetric(dist_sync_on_step=True), {}, RuntimeError, "``merge_state`` is not supported"),
    ]:
        with pytest.raises(error, match=said):
            metric.merge_state(state)


# Other processes, as a function says they are.


def twice(value: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """What two processes with the same data have."""
    return [value, value]


@quiet
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("Running")])
def test_a_function_may_gather(name):
    sample = of(name)[0]
    options = {"dist_sync_fn": twice, "distributed_available_fn": lambda: True}
    metric = Sample(name, {**sample.options, **options}, sample.batch).make()
    whole = sample.make()
    metric.update(*sample.data(0))
    for _ in range(2):
        whole.update(*sample.data(0))
    assert same(metric.compute(), whole.compute())
    assert metric.update_count == 1


@pytest.mark.parametrize("kind", [Mergeable, metrics.SumMetric])
def test_synced_states_and_the_way_back(kind):
    metric = kind(dist_sync_fn=twice, distributed_available_fn=lambda: True)
    metric.update(2.0)
    with pytest.raises(RuntimeError, match=r"already been un-synced"):
        metric.unsync()
    metric.sync()
    with pytest.raises(RuntimeError, match=r"already been synced"):
        metric.sync()
    with pytest.raises(RuntimeError, match="shouldn't be synced when performing"):
        metric(1.0)
    assert metric.compute() == 4.0
    metric.unsync()
    with metric.sync_context(should_unsync=False):
        pass
    assert metric._is_synced
    metric.reset()
    metric.update(1.0)
    assert (metric._is_synced, metric.compute()) == (False, 2.0)
    step = kind(dist_sync_fn=twice, distributed_available_fn=lambda: True, dist_sync_on_step=True)
    assert (step(1.0), step(2.0), step.update_count) == (2.0, 4.0, 2)


def test_a_function_gathers_for_a_collection_too():
    options = {"dist_sync_fn": twice, "distributed_available_fn": lambda: True}
    collection = metrics.MetricCollection(
        [kind(**options) for kind in (metrics.SumMetric, metrics.MaxMetric, Total)]
    )
    collection.update(3.0)
    assert collection.compute() == {"SumMetric": 6.0, "MaxMetric": 3.0, "Total": 6.0}
    assert collection.read(async_op=True).result() == collection.compute()
    collection.update(1.0)
    assert collection.compute()["SumMetric"] == 8.0


def test_kinds_of_reductions_over_processes():
    metric = Kinds(dist_sync_fn=twice, distributed_available_fn=lambda: True)
    metric.update(3.0)
    assert metric.compute() == [2, 3.0, 3.0, 3.0, 9.0]
    stacked = Stacked(dist_sync_fn=twice, distributed_available_fn=lambda: True)
    stacked.update(2.0)
    assert stacked.compute().tolist() == [6.0, 6.0]


# TorchScript.


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_modules_with_metrics_can_be_scripted(name):
    for sample in of(name)[:2]:
        assert isinstance(torch.jit.script(sample.make()), torch.jit.ScriptModule)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_modules_can_be_scripted():
    accuracy = metrics.MulticlassAccuracy(3, average="none")
    for module in (
        Kinds(),
        Percent(3),
        metrics.ClasswiseWrapper(accuracy),
        metrics.BootStrapper(accuracy),
        metrics.MetricCollection(accuracy, metrics.MeanSquaredError()),
        metrics.SumMetric() + 1,
    ):
        assert isinstance(torch.jit.script(module), torch.jit.ScriptModule)


# Groups that a user chooses.


def test_groups():
    parts = [metrics.MulticlassRecall(3), metrics.MulticlassPrecision(3), metrics.MulticlassF1Score(3)]
    none = metrics.MetricCollection(copy.deepcopy(parts), compute_groups=False)
    none.update(tensor([0, 1]), tensor([0, 1]))
    assert none.compute_groups == {}
    assert len({id(part) for member in none.values() for part in member.all_statistics()}) == 3
    assert all(member.update_called for member in none.values())
    groups = [["MulticlassRecall", "MulticlassF1Score"]]
    chosen = metrics.MetricCollection(copy.deepcopy(parts), compute_groups=groups)
    assert chosen.compute_groups == {0: groups[0], 1: ["MulticlassPrecision"]}
    ids = {name: id(member.all_statistics()[0]) for name, member in chosen.items()}
    assert ids["MulticlassRecall"] == ids["MulticlassF1Score"] != ids["MulticlassPrecision"]


def test_a_member_that_went_its_own_way_hears_of_later_updates():
    collection = metrics.MetricCollection(metrics.MulticlassRecall(3), metrics.MulticlassPrecision(3))
    batch = tensor([0, 1]), tensor([0, 1])
    collection.update(*batch)
    collection["MulticlassRecall"].reset()
    assert not collection["MulticlassRecall"].update_called
    collection.update(*batch)
    assert [member.update_count for member in collection.values()] == [1, 2]
    collection.reset()
    assert not any(member.update_called for member in collection.values())


def test_collections_of_the_same_metric_do_not_mix_up_its_mates():
    recall, precision = metrics.MulticlassRecall(3), metrics.MulticlassPrecision(3)
    both, alone = metrics.MetricCollection(recall, precision), metrics.MetricCollection([recall])
    alone.update(tensor([0, 1]), tensor([0, 1]))
    assert (recall.update_count, precision.update_count) == (1, 0)
    both.update(tensor([1, 1]), tensor([0, 1]))
    assert recall.compute() == 0.75
    assert precision.compute() == 0.25
