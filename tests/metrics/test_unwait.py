"""`unwait`: the same values, fewer waits, the same complaints, and objects that stay what they were."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics import classification as tc
from torchmetrics.aggregation import BaseAggregator, CatMetric, MaxMetric, MeanMetric, MinMetric, SumMetric
from torchmetrics.text import Perplexity
from torchmetrics.wrappers import MinMaxMetric, Running

import gapless
from gapless.metrics.torchmetrics import unwait
from gapless.metrics.torchmetrics._registry import REPLACEMENTS, digest_of, original_of, table

HERE = Path(__file__).parent
BENCHMARKS = HERE.parents[1] / "benchmarks"
NAN = float("nan")

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def load_cases() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location(
            "torchmetrics_waits", BENCHMARKS / "torchmetrics_waits.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


WAITS = load_cases()
CASES = {case.name: case for case in WAITS.cases()}
SLOW = (
    "AtFixed",
    "AtSpecificity",
    "AtSensitivity",
    "Hausdorff",
    "AdjustedMutual",
    "Fidelity",
    "VisualInf",
    "LogAUC",
)
"""Names of what takes longest; the benchmark runs these too."""


@pytest.fixture(scope="module")
def seen() -> Iterator[Any]:
    """One emulated device for all tests of this module that ask for it."""
    with gapless.emulate() as seen:
        yield seen


def same(a: Any, b: Any) -> None:
    """Assert that two results hold the same values."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, Tensor):
        torch.testing.assert_close(b, a, equal_nan=True, check_dtype=False)
    else:
        assert a == b


# -- every class -----------------------------------------------------------------------------------


def counted(case: Any, seen: Any, change: Callable[[Any], Any]) -> tuple[list[int], int, Any]:
    """Waits of three updates and of the result, and the result."""
    torch.manual_seed(0)
    metric = case.build().to("cuda")
    change(metric)
    updates = []
    for step in range(3):
        batch = case.batch(WAITS.Make(step, "cuda"))
        before = seen.waits
        WAITS.update(metric, batch, step)
        updates.append(seen.waits - before)
    before = seen.waits
    value = metric.compute()
    waits = seen.waits - before
    return updates, waits, WAITS.host(value)


@pytest.mark.parametrize("name", [name for name in CASES if not any(slow in name for slow in SLOW)])
def test_same_values_and_no_more_waits(name: str, seen: Any) -> None:
    before, result, value = counted(CASES[name], seen, lambda metric: None)
    after, unwaited_result, unwaited_value = counted(CASES[name], seen, unwait)
    same(value, unwaited_value)
    assert all(a <= b for a, b in zip(after, before, strict=True))
    assert sum(after) + unwaited_result <= sum(before) + result


COMMON = [
    name
    for family in ("aggregation", "classification", "regression", "segmentation")
    for name in (case.name for case in WAITS.FAMILIES[family]())
    if not any(slow in name for slow in SLOW)
]
LEFT = ("Fairness", "GroupStatRates", "RankingAverage", "GeneralizedDice")
"""What looks at groups, rows or weights one by one, and still waits."""


@pytest.mark.parametrize("name", [n for n in COMMON if not any(left in n for left in LEFT)])
def test_common_updates_do_not_wait(name: str, seen: Any) -> None:
    case = CASES[name]
    metric = case.build().to("cuda")
    unwait(metric)
    keeps_lists = any(isinstance(default, list) for default in metric._defaults.values())
    # rows that are kept as they are have to be cut out, and their number is read once
    cuts_rows = "ignore_index" in name and (keeps_lists or "Hinge" in name) and "Multilabel" not in name
    for step in range(2):
        batch = case.batch(WAITS.Make(step, "cuda"))
        before = seen.waits
        metric.update(*batch)
        assert seen.waits - before <= (1 if cuts_rows else 0)


def test_later_delivery_never_waits(seen: Any) -> None:
    metrics = MetricCollection({"mean": MeanMetric(), "accuracy": tc.MulticlassAccuracy(5)}).to("cuda")
    for metric in metrics.values():
        unwait(metric, checks="later")
    make = WAITS.Make(0, "cuda")
    value, logits, target = make.real(8), make.real(8, 5), make.label(5, 8)
    before = seen.waits
    metrics["mean"].update(value)
    metrics["mean"](value, 2.0)
    metrics["accuracy"].update(logits, target)
    metrics["accuracy"](logits, target)
    for metric in metrics.values():
        metric.compute()
        metric.reset()
    assert seen.waits == before


def test_forward_does_not_wait_with_checks_on(seen: Any) -> None:
    metric = tc.MulticlassAccuracy(5).to("cuda")
    unwait(metric)
    make = WAITS.Make(0, "cuda")
    logits, target = make.real(8, 5), make.label(5, 8)
    before = seen.waits
    metric(logits, target)
    metric(logits, target)
    assert seen.waits == before
    metric.compute()


def test_a_collection_reads_its_checks_once_and_groups_once(seen: Any) -> None:
    metrics = WAITS.collection().to("cuda")
    unwait(metrics)
    make = WAITS.Make(0, "cuda")
    inputs = [(make.real(8, 5), make.label(5, 8)) for _ in range(2)]
    before = seen.waits
    metrics.update(*inputs[0])
    assert seen.waits - before == 1
    metrics.update(*inputs[1])
    assert seen.waits - before == 1
    metrics.compute()
    assert seen.waits - before == 2
    reference = WAITS.collection().to("cuda")
    reference.update(*inputs[0])
    assert reference.compute_groups == metrics.compute_groups


# -- options over random inputs ----------------------------------------------------------------------

sizes = st.integers(1, 20)


@settings(max_examples=60, deadline=None)
@given(
    cls=st.sampled_from(
        [tc.MulticlassAccuracy, tc.MulticlassF1Score, tc.MulticlassStatScores, tc.MulticlassSpecificity]
    ),
    average=st.sampled_from(["micro", "macro", "weighted", "none"]),
    ignore_index=st.sampled_from([None, 0, -1, 7]),
    kind=st.sampled_from(["logits", "labels", "top_k", "samplewise", "images"]),
    n=sizes,
    seed=st.integers(0, 1000),
)
def test_counts_of_classes(
    cls: Any, average: str, ignore_index: int | None, kind: str, n: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    extra = () if kind in ("logits", "labels", "top_k") else (3,)
    target = torch.randint(4, (n, *extra), generator=g)
    if ignore_index is not None:
        target[torch.rand(target.shape, generator=g) < 0.3] = ignore_index
    scores = torch.randn(n, 4, *extra, generator=g)
    preds = scores.argmax(1) if kind in ("labels", "samplewise") else scores
    options = {"top_k": 2} if kind in ("top_k", "images") else {}
    if kind == "samplewise":
        options["multidim_average"] = "samplewise"
    both = [cls(4, average=average, ignore_index=ignore_index, **options) for _ in range(2)]
    unwait(both[1])
    for metric in both:
        metric.update(preds, target)
        metric.update(preds, target)
    for name in ("tp", "fp", "tn", "fn"):
        expected, found = getattr(both[0], name), getattr(both[1], name)
        assert type(found) is type(expected)
        for a, b in zip(expected, found, strict=True) if isinstance(expected, list) else [(expected, found)]:
            assert torch.equal(a, b)
            assert a.dtype == b.dtype
    same(both[0].compute(), both[1].compute())


@settings(max_examples=40, deadline=None)
@given(
    task=st.sampled_from(["binary", "multiclass", "multilabel"]),
    cls=st.sampled_from(
        [torchmetrics.ConfusionMatrix, torchmetrics.AUROC, torchmetrics.PrecisionRecallCurve]
    ),
    ignore_index=st.sampled_from([None, 0, -1]),
    thresholds=st.sampled_from([7, [0.9, 0.1, 0.5]]),
    logits=st.booleans(),
    n=sizes,
    seed=st.integers(0, 1000),
)
def test_matrices_and_curves(
    task: str, cls: Any, ignore_index: int | None, thresholds: Any, logits: bool, n: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    shape = (n,) if task == "binary" else (n, 4)
    scores = torch.randn(shape, generator=g) if logits else torch.rand(shape, generator=g)
    target = (
        torch.randint(4, (n,), generator=g) if task == "multiclass" else torch.randint(2, shape, generator=g)
    )
    if ignore_index is not None:
        target[torch.rand(target.shape, generator=g) < 0.3] = ignore_index
    options = {} if cls is torchmetrics.ConfusionMatrix else {"thresholds": thresholds}
    both = [cls(task, num_classes=4, num_labels=4, ignore_index=ignore_index, **options) for _ in range(2)]
    unwait(both[1])
    for metric in both:
        metric.update(scores, target)
    assert torch.equal(both[0].confmat, both[1].confmat)
    same(both[0].compute(), both[1].compute())


@settings(max_examples=60, deadline=None)
@given(
    cls=st.sampled_from([MeanMetric, SumMetric, MaxMetric, MinMetric, CatMetric]),
    strategy=st.sampled_from(["ignore", "warn", 3.0, "disable"]),
    values=st.lists(
        st.lists(st.one_of(st.just(NAN), st.floats(-100, 100, width=32)), min_size=1, max_size=5),
        min_size=1,
        max_size=4,
    ),
)
def test_aggregators_with_nan(cls: Any, strategy: Any, values: list[list[float]]) -> None:
    both = [cls(nan_strategy=strategy) for _ in range(2)]
    unwait(both[1])
    for metric in both:
        for value in values:
            metric.update(torch.tensor(value))
    same(both[0].compute(), both[1].compute())


@pytest.mark.parametrize("strategy", ["ignore", "warn", 3.0, "disable"])
@pytest.mark.parametrize("weight", [None, 2.0, [1.0, NAN, 3.0]])
def test_mean_with_weights(strategy: Any, weight: Any) -> None:
    both = [MeanMetric(nan_strategy=strategy) for _ in range(2)]
    unwait(both[1])
    for metric in both:
        given_weight = torch.tensor(weight) if isinstance(weight, list) else weight
        metric.update(torch.tensor([1.0, 2.0, 4.0]), *([] if weight is None else [given_weight]))
        metric.update(5.0)
    same(both[0].compute(), both[1].compute())


def test_a_float_strategy_leaves_the_callers_tensor_alone() -> None:
    metric = MeanMetric(nan_strategy=1.0)
    unwait(metric)
    value = torch.tensor([NAN, 3.0])
    metric.update(value)
    assert value[0].isnan()
    assert metric.compute() == 2.0


@pytest.mark.parametrize("ignore_index", [None, -100])
def test_perplexity(ignore_index: int | None) -> None:
    g = torch.Generator().manual_seed(0)
    scores, target = torch.randn(2, 9, 5, generator=g), torch.randint(5, (2, 9), generator=g)
    if ignore_index is not None:
        target[:, 3] = ignore_index
    both = [Perplexity(ignore_index=ignore_index) for _ in range(2)]
    unwait(both[1])
    for metric in both:
        metric.update(scores, target)
    same(both[0].compute(), both[1].compute())


# -- what is wrong is told ---------------------------------------------------------------------------


def test_nan_is_an_error_at_the_next_compute_and_only_there() -> None:
    metric = MeanMetric(nan_strategy="error")
    unwait(metric)
    metric.update(torch.tensor([1.0, NAN, 3.0]))
    with pytest.raises(RuntimeError, match="MeanMetric: 1 values were `nan`"):
        metric.compute()
    assert metric.compute() == 2.0
    metric.update(5.0)
    assert metric.compute() == 3.0


def test_nan_is_warned_of() -> None:
    metric = SumMetric()
    unwait(metric)
    metric.update(torch.tensor([NAN, NAN, 3.0]))
    with pytest.warns(UserWarning, match="SumMetric: 2 values were `nan`"):
        assert metric.compute() == 3.0


def test_cat_cuts_out_and_tells_once() -> None:
    metric = CatMetric()
    unwait(metric)
    metric.update(torch.tensor([1.0, NAN]))
    with pytest.warns(UserWarning, match="CatMetric: 1 values"):
        same(metric.compute(), torch.tensor(1.0))
    metric.update(2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(metric.compute(), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize(
    ("metric", "preds", "target", "words"),
    [
        (tc.BinaryAccuracy(), [0.1, 0.9], [0, 3], "1 targets were not 0 or 1"),
        (tc.BinaryAccuracy(ignore_index=-1), [0.1, 0.9], [-1, 3], "1 targets were not 0, 1 or -1"),
        (tc.BinaryAccuracy(), [0, 2], [0, 1], "1 predictions were not 0 or 1"),
        (
            tc.MulticlassAccuracy(2, average="micro"),
            [0, 1, 0],
            [0, 1, 2],
            "1 more different values in `target`",
        ),
        (tc.MulticlassAccuracy(3), [[0.1, 0.2, 0.7]], [5], "1 labels were outside"),
        (tc.MulticlassConfusionMatrix(3), [[0.1, 0.2, 0.7]], [-1], "1 labels were outside"),
        (tc.MulticlassAUROC(3, thresholds=3), [[0.1, 0.2, 0.7]] * 4, [0, 1, 2, 3], "more different values"),
        (tc.MultilabelConfusionMatrix(2), [[0.1, 0.2]], [[4, 1]], "1 targets were not 0 or 1"),
        (tc.BinaryPrecisionRecallCurve(thresholds=3), [0.1, 0.9], [0, 3], "1 targets were not 0 or 1"),
    ],
)
def test_bad_values_are_told_at_compute(metric: Any, preds: Any, target: Any, words: str) -> None:
    unwait(metric)
    metric.update(torch.tensor(preds), torch.tensor(target))
    with pytest.raises(RuntimeError, match=f"{type(metric).__name__}: .*{words}"):
        metric.compute()
    metric.compute()


@pytest.mark.parametrize(
    ("preds", "target"),
    [
        (torch.rand(4, 3), torch.zeros(5, dtype=torch.long)),
        (torch.rand(4, 2), torch.zeros(4, dtype=torch.long)),
    ],
)
def test_bad_forms_are_told_at_once_and_in_the_same_words(preds: Tensor, target: Tensor) -> None:
    plain, metric = tc.MulticlassAccuracy(3), tc.MulticlassAccuracy(3)
    unwait(metric)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        plain.update(preds, target)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as found:
            metric.update(preds, target)
        assert str(found.value) == str(expected.value)


def test_checks_can_be_off() -> None:
    metrics = [MeanMetric(nan_strategy="error"), tc.BinaryAccuracy()]
    unwait(metrics, checks="off")
    metrics[0].update(torch.tensor([1.0, NAN]))
    metrics[1].update(torch.tensor([0.1, 0.9]), torch.tensor([0, 3]))
    assert metrics[0].compute() == 1.0
    metrics[1].compute()


def test_forward_tells_when_it_has_arrived(seen: Any) -> None:
    metric = MeanMetric(nan_strategy="error").to("cuda")
    unwait(metric)
    value = torch.tensor([1.0, NAN]).to("cuda")
    metric(value)
    with pytest.raises(RuntimeError, match="1 values were `nan`"):
        metric(torch.tensor([1.0]).to("cuda"))


def test_no_check_is_lost_in_a_collection() -> None:
    metrics = MetricCollection([MeanMetric(nan_strategy="error"), MaxMetric(nan_strategy="warn")])
    unwait(metrics)
    metrics.update(torch.tensor([1.0, NAN]))
    with (
        pytest.warns(UserWarning, match="MaxMetric: 1 values"),
        pytest.raises(RuntimeError, match="MeanMetric: 1"),
    ):
        metrics.compute()
    same(metrics.compute(), {"MeanMetric": torch.tensor(1.0), "MaxMetric": torch.tensor(1.0)})


def test_unknown_delivery() -> None:
    with pytest.raises(ValueError, match="it can be"):
        unwait(MeanMetric(), checks="never")  # type: ignore[arg-type]


# -- subclasses of the user's own ---------------------------------------------------------------------


class Unchecked(MeanMetric):
    """A mean whose check is overridden, as users do it."""

    def _cast_and_nan_check_input(self, x: Any, weight: Any = None) -> tuple[Tensor, Tensor]:
        if weight is None:
            weight = torch.ones_like(x)
        return x.to(self.dtype), weight.to(self.dtype)


class Weighted(MeanMetric):
    """A mean whose update is written out, with a default weight that is a number."""

    def update(self, value: Any, weight: Any = 1.0) -> None:
        if not isinstance(value, Tensor):
            value = torch.as_tensor(value, dtype=self.dtype, device=self.device)
        if not isinstance(weight, Tensor):
            weight = torch.as_tensor(weight, dtype=self.dtype, device=self.device)
        value, weight = self._cast_and_nan_check_input(value, torch.broadcast_to(weight, value.shape))
        self.mean_value += (value * weight).sum()
        self.weight += weight.sum()


class Doubled(SumMetric):
    """A sum that calls the one it inherits from."""

    def update(self, value: Any) -> None:
        super().update(value)
        super().update(value)


class Product(BaseAggregator):
    """An aggregator of another kind: what would stand in for a nan is not known."""

    def __init__(self, **options: Any) -> None:
        super().__init__("sum", torch.tensor(1.0), state_name="product", **options)

    def update(self, value: Any) -> None:
        value, _ = self._cast_and_nan_check_input(value)
        self.product = self.product * value.prod()


class Own(torchmetrics.Metric):
    """A metric that owes nothing to those of the library."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(2), "sum")
        self.add_state("rows", [], "cat")

    def update(self, value: Tensor) -> None:
        self.total = self.total + value.sum(0)
        self.rows.append(value)

    def compute(self) -> Tensor:
        return self.total.sum() + torchmetrics.utilities.data.dim_zero_cat(self.rows).sum()


@pytest.mark.parametrize("cls", [Unchecked, Weighted, Doubled])
def test_subclasses_of_aggregators_do_not_wait(cls: Any, seen: Any) -> None:
    both = [cls().to("cuda") for _ in range(2)]
    unwait(both[1])
    for metric in both:
        before = seen.waits
        metric.update(torch.tensor([1.0, 2.0]).to("cuda"))
        metric.update(3.0)
        waits = seen.waits - before
    assert waits <= 1, "the tensor that the test itself places"
    same(both[0].compute().cpu(), both[1].compute().cpu())


def test_an_aggregator_of_unknown_kind_keeps_its_check() -> None:
    metric = Product(nan_strategy="ignore")
    report = unwait(metric)
    metric.update(torch.tensor([2.0, NAN, 3.0]))
    assert metric.compute() == 6.0
    assert "not known of this class" in str(report)


def test_an_unknown_metric_is_left_alone_and_said() -> None:
    metric = Own()
    report = unwait(metric)
    metric.update(torch.ones(3, 2))
    assert metric.compute() == 12.0
    assert "update: written in" in str(report)


# -- objects stay what they were ----------------------------------------------------------------------


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
    for one in copies:
        assert type(one) is type(metric)
        same(one.compute(), metric.compute())
        one.update(torch.tensor([NAN, 6.0]))
        with pytest.warns(UserWarning, match="1 values were `nan`"):
            one.compute()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(metric).compute()


def test_checks_not_yet_told_go_along_with_a_copy() -> None:
    metric = MeanMetric(nan_strategy="error")
    unwait(metric)
    metric.update(torch.tensor([1.0, NAN]))
    with pytest.raises(RuntimeError, match="1 values"):
        pickle.loads(pickle.dumps(metric)).compute()


def test_another_process_reads_the_pickle(tmp_path: Path) -> None:
    metric = tc.MulticlassAccuracy(3)
    unwait(metric)
    metric.update(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1]))
    path = tmp_path / "metric"
    path.write_bytes(pickle.dumps(metric))
    code = (
        f"import pickle; m = pickle.load(open({str(path)!r}, 'rb')); "
        "print(float(m.compute()), m._unwaited_checks.delivery)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
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
    same(metric.state_dict(), before)
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


def test_undo_tells_what_was_counted() -> None:
    metric = MeanMetric(nan_strategy="error")
    report = unwait(metric)
    metric.update(torch.tensor([NAN, 1.0]))
    with pytest.warns(UserWarning, match="1 values were `nan`"):
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
    same(metrics.compute(), {"MeanMetric": torch.tensor(2.0), "SumMetric": torch.tensor(2.0)})


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
    for one in (plain, metric):
        one.update(*inputs)
    where = {name: getattr(metric, name).data_ptr() for name in metric._defaults}
    for one in (plain, metric):
        one.update(*inputs)
        one(*inputs)
        one.compute()
    same(plain.compute(), metric.compute())
    for one in (plain, metric):
        one.reset()
        one.update(*inputs)
    assert {name: getattr(metric, name).data_ptr() for name in metric._defaults} == where
    same(plain.compute(), metric.compute())


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
    same(*values)


# -- the versions the replacements were written for ------------------------------------------------------


def test_every_replacement_knows_the_text_it_stands_for() -> None:
    if not torchmetrics.__version__.startswith("1.9."):
        pytest.skip("the texts are those of 1.9")
    assert table().strange == ()
    assert len(table().of) == len(REPLACEMENTS)


def test_a_function_with_another_text_is_not_replaced() -> None:
    def other(x: Tensor, minlength: int | None = None) -> Tensor:
        return x

    originals = [original_of(one) for one in REPLACEMENTS]
    assert digest_of(other) not in {digest_of(one) for one in originals if one is not None}


def test_the_report_counts_what_was_counted() -> None:
    text = str(unwait(MeanMetric()))
    assert "waits per update 2 → 0" in text
    assert "sync: one collective" in text


# -- two ranks -------------------------------------------------------------------------------------------


def test_two_ranks(tmp_path: Path) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    script = str(HERE / "unwait_ranks.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([sys.executable, "-W", "ignore", script, str(rank), str(tmp_path)], env=environment)
        for rank in range(2)
    ]
    assert [one.wait(timeout=120) for one in running] == [0, 0]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["different"] == []
        assert found["five"] == {"before": 52, "after": 1}
        assert found["loose"] == {"before": 52, "after": 5}
        assert found["nccl"]["error"].startswith("RuntimeError")
        assert found["nccl"]["value"] == 0.5
        assert found["local"] == rank
