"""What metrics ask of a device: few kernels, however many metrics, and the same states whichever they are."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchmetrics.segmentation
from metrics.samples import SAMPLES
from metrics.test_waits import family
from torch import Tensor

import gapless
import gapless.metrics as metrics
from gapless.emulation.dispatch.operators import launches
from gapless.metrics import tally
from gapless.torch_internals import TorchDispatchMode

NAMES = ("MulticlassAccuracy", "MulticlassPrecision", "MulticlassRecall", "MulticlassF1Score")


class Launches(TorchDispatchMode):
    """Counts what runs on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        held = [
            value
            for value in (*args, out)
            for value in (value if isinstance(value, (list, tuple)) else [value])
        ]
        if launches(func) and any(isinstance(value, Tensor) and value.is_cuda for value in held):
            self.seen[func._schema.name] += 1
        return out


def launched(call: Callable[[], Any]) -> int:
    with Launches() as counted:
        call()
    return counted.seen.total()


def batch(classes: int, seed: int, rows: int = 128) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    preds = torch.randn(rows, classes, generator=random)
    target = torch.randint(0, classes, (rows,), generator=random)
    return tuple(tensor.to("cuda") for tensor in (torch.tensor(0.5 + seed), preds, target))  # type: ignore[return-value]


def five(classes: int, average: str) -> dict[str, metrics.Metric]:
    several = {name: getattr(metrics, name)(classes, average=average) for name in NAMES}
    return {"loss": metrics.MeanMetric(), **several}


@pytest.mark.parametrize(("classes", "average"), [(10, "macro"), (1000, "macro"), (1000, "micro")])
def test_five_metrics_take_few_kernels(classes, average):
    with gapless.emulate() as emulation:
        together = metrics.MetricCollection(five(classes, average)).to("cuda")
        apart = {name: metric.to("cuda") for name, metric in five(classes, average).items()}

        def update(data: tuple[Tensor, Tensor, Tensor]) -> None:
            together.update(value=data[0], preds=data[1], target=data[2])

        def update_each(data: tuple[Tensor, Tensor, Tensor]) -> None:
            for name, metric in apart.items():
                metric.update(*(data[:1] if name == "loss" else data[1:]))

        for seed in range(3):
            data = batch(classes, seed)
            update(data)
            update_each(data)
        data, before = batch(classes, 3), emulation.waits
        assert launched(lambda: update(data)) <= 12
        assert launched(lambda: update_each(data)) <= 16
        assert launched(together.compute) <= 24
        assert emulation.waits == before
        torch.testing.assert_close(together.compute(), {n: alone.compute() for n, alone in apart.items()})
        assert launched(together.reset) <= 3


def counted(classes: int, ignored: int | None, target: Tensor, preds: Tensor) -> metrics.MulticlassStatScores:
    options: Any = {"average": None, "ignore_index": ignored}
    metric = metrics.MulticlassStatScores(classes, **options).to(target.device)
    for _ in range(2):
        metric.update(preds, target)
    return metric


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("ignored", [None, 255, 1])
@pytest.mark.parametrize(("classes", "bins"), [(7, 4096), (70, 4096), (70, 20)])
def test_every_way_to_count_gives_the_same(monkeypatch, classes, bins, ignored, scores, many):
    monkeypatch.setattr(tally, "MIN_LABELS_FOR_BLOCKS", 64 if many else 10**9)
    monkeypatch.setattr(tally, "MAX_BLOCK_BINS", bins)
    random = torch.Generator().manual_seed(classes)
    shape = (3, 5, 9)
    target = torch.randint(0, classes, shape, generator=random)
    preds = torch.randn(3, classes, 5, 9, generator=random) if scores else target.roll(1, -1)
    if ignored is not None:
        target[:, 0] = ignored
    expected = counted(classes, ignored, target, preds).compute()
    with gapless.emulate() as emulation:
        metric = counted(classes, ignored, target.to("cuda"), preds.to("cuda"))
        waits = emulation.waits
        torch.testing.assert_close(metric.compute().cpu(), expected)
        assert emulation.waits - waits <= 1
        bad = target.clone()
        bad[0, 1, :3] = torch.tensor([-2, classes, torch.iinfo(torch.int64).min])
        metric.update(preds.to("cuda"), bad.to("cuda"))
        with pytest.raises(
            RuntimeError, match=rf"Detected 3 values .*: 0 to {classes - 1} \(first in update 3\)"
        ):
            metric.check()


def test_boxes_of_all_sizes_are_averaged_together():
    with gapless.emulate():
        metric = metrics.MeanAveragePrecision().to("cuda")
        box = torch.rand(30, 4, device="cuda")
        labels = torch.arange(30, device="cuda") % 3
        metric.update(
            [{"boxes": box, "scores": box[:, 0], "labels": labels}], [{"boxes": box, "labels": labels}]
        )
        assert launched(metric.compute) <= 302 + 8 * 10  # for each of ten boxes of a class in an image


OF_MASKS: dict[str, Any] = {"num_classes": 10, "input_format": "index"}


def test_segments_take_as_many_kernels_however_many_there_are():
    with gapless.emulate() as emulation:
        metric = metrics.PanopticQuality(things={0, 1}, stuffs={2}).to("cuda")
        for most in (2, 50):
            points = torch.stack([torch.randint(0, n, (2, 16, 16)) for n in (3, most)], -1).to("cuda")
            before = emulation.waits
            assert launched(lambda segments=points: metric.update(segments, segments.flip(1))) <= 89
            assert emulation.waits == before


def masks_of(images: int, dtype: torch.dtype = torch.int64) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(images)
    target = torch.randint(0, 10, (images, 8, 8), generator=random)
    return target.roll(1).to(dtype), target.to(dtype)


@pytest.mark.parametrize(
    ("metric", "update", "compute"),
    [(metrics.MeanIoU(**OF_MASKS), 13, 5), (metrics.DiceScore(**OF_MASKS), 16, 4)],
    ids=lambda value: type(value).__name__,
)
def test_few_kernels_count(metric, update, compute):
    """Checks are among them."""
    with gapless.emulate() as emulation:
        metric.to("cuda")
        data = [value.to("cuda") for value in masks_of(4)]
        metric.update(*data)
        before = emulation.waits
        assert launched(lambda: metric.update(*data)) <= update
        assert launched(metric.compute) <= compute
        assert emulation.waits == before


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("name", ["MeanIoU", "DiceScore", "GeneralizedDiceScore"])
def test_masks_of_any_integers_and_any_number_count(name, dtype):
    metric_on = {device: getattr(metrics, name)(**OF_MASKS) for device in ("cpu", "cuda", "all")}
    for images in (3, 400):
        metric_on["all"].update(*masks_of(images))
        metric_on["cpu"].update(*masks_of(images, dtype))
    with gapless.emulate():
        for images in (3, 400):
            metric_on["cuda"].to("cuda").update(*(mask.to("cuda") for mask in masks_of(images, dtype)))
        values = [metric_on[device].compute().cpu() for device in ("cpu", "cuda")]
    for value in values:
        torch.testing.assert_close(value, metric_on["all"].compute())


@pytest.mark.parametrize("average", ["micro", "macro", "weighted"])
def test_averages_are_over_the_channels_that_there_are(average):
    random = torch.Generator().manual_seed(1)
    data = [torch.randint(0, 2, (3, 7, 4, 4), generator=random) for _ in range(2)]
    values = [home.DiceScore(5, average=average) for home in (metrics, torchmetrics.segmentation)]
    for metric in values:
        metric.update(*data)
    torch.testing.assert_close(values[0].compute(), values[1].compute())


def test_masks_saved_by_earlier_versions_load():
    saved = {
        "scores.score": torch.full((10,), 6.0, dtype=torch.float64),
        "scores.there": torch.full((10,), 4),
        "scores.strange": torch.tensor(0),
        "scores.clean": torch.tensor(3),
    }
    metric = metrics.MeanIoU(**OF_MASKS)
    metric.persistent(True)
    metric.load_state_dict(saved)
    assert metric.compute() == 1.5
    torch.testing.assert_close(dict(metric.state_dict()), saved)


def test_no_temporary_is_larger_than_the_input(monkeypatch):
    """Of an update at the sizes of segmentation."""
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and launches(func):
                largest = max(largest, out.numel() * out.itemsize)
            return out

    with gapless.emulate():
        preds = torch.randn(1, 10, 192, 192, device="cuda")
        target = torch.randint(0, 10, (1, 192, 192), device="cuda")
        cases: list[tuple[metrics.Metric, Tensor]] = [
            (metrics.MulticlassF1Score(10), preds),
            (metrics.MulticlassF1Score(10), target.roll(1)),
            (metrics.MeanIoU(**OF_MASKS), target.roll(1)),
            (metrics.DiceScore(**OF_MASKS), target.roll(1)),
            (metrics.GeneralizedDiceScore(**OF_MASKS), target.roll(1)),
            (metrics.DiceScore(10, input_format="mixed"), preds),
        ]
        for metric, scores in cases:
            metric.to("cuda")
            largest = 0
            with Sizes():
                metric.update(scores, target)
            assert 0 < largest <= scores.numel() * scores.itemsize, metric


@pytest.mark.parametrize("deterministic", [False, True])
def test_metrics_apart_stay_apart(deterministic):
    """Those that saw the same copy each other's states, and those that did not count for themselves."""
    torch.use_deterministic_algorithms(deterministic)
    try:
        with gapless.emulate():
            apart = [metrics.MulticlassRecall(10).to("cuda") for _ in range(5)]
            expected: list[list[Any]] = [[] for _ in apart]

            def update(numbers: list[int], data: tuple[Tensor, Tensor]) -> None:
                for number in numbers:
                    apart[number].update(*data)
                    expected[number].append([tensor.cpu() for tensor in data])

            update([0, 1, 2, 3, 4], batch(10, 0)[1:])
            update([0, 1, 2], batch(10, 1)[1:])
            data = batch(10, 2)[1:]
            update([0, 1], data)
            data[1].zero_()  # another batch, in the same tensors
            update([2, 0, 1, 3], data)
            apart[4].reset()
            expected[4].clear()
            update([4, 3], batch(10, 3)[1:])
            apart[0].load_state_dict(apart[0].state_dict())
            apart[1].merge_state(apart[2])
            expected[1] += expected[2]
            update([2, 1, 0], batch(10, 4)[1:])
            apart[3](*batch(10, 5)[1:])
            expected[3].append([item.cpu() for item in batch(10, 5)[1:]])
            apart.append(copy.deepcopy(apart[2]))
            expected.append([*expected[2]])
            update([2, 3, 5], batch(10, 6)[1:])
            apart[2].counted.state["table"].zero_()
            expected[2].clear()
            update([3, 2, 5], batch(10, 7)[1:])
            for metric, counted_batches in zip(apart, expected, strict=True):
                alone = metrics.MulticlassRecall(10)
                for item in counted_batches:
                    alone.update(*item)
                torch.testing.assert_close(metric.compute().cpu(), alone.compute())
    finally:
        torch.use_deterministic_algorithms(False)


def test_means_saved_by_earlier_versions_load():
    saved = {"weighted.sum": 6.0, "weighted.weight": 4.0, "weighted.nans": 2, "weighted.clean": 3}
    mean = metrics.MeanMetric()
    mean.persistent(True)
    mean.load_state_dict({name: torch.tensor(value) for name, value in saved.items()})
    assert mean.compute() == 1.5
    assert {name: value.item() for name, value in mean.state_dict().items()} == saved


@pytest.mark.parametrize("value", [1e-30, -3.0, torch.inf, 0.0, 1e30])
def test_a_nan_leaves_no_trace_in_a_mean(value):
    with gapless.emulate():
        mean = metrics.MeanMetric(nan_strategy="ignore").to("cuda")
        for number in (torch.nan, value, torch.nan):
            mean.update(torch.full((), number, device="cuda"))
        assert mean.compute().item() == torch.tensor(value).item()
        assert mean.weighted.faults().item() == 2
        for several in (torch.full((), torch.nan), torch.full((5,), torch.nan)):
            mean.reset()
            mean.update(several.to("cuda"))
            assert mean.compute().isnan().item()
            assert mean.weighted.faults().item() == several.numel()


def refused(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether CUDA's operator adds in no order, so that ``torch.use_deterministic_algorithms`` refuses it:
    https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html
    """
    name = func._schema.name.removeprefix("aten::")
    floats = isinstance(args[0], Tensor) and args[0].is_floating_point()
    return (
        name in ("histc", "_histc", "put_", "put", "kthvalue", "median", "max_unpool2d", "_ctc_loss")
        or (name == "bincount" and len(args) > 1 and args[1] is not None)
        or (name in ("cumsum", "cumsum_", "cumprod") and floats)
        or (name.startswith("scatter_reduce") and args[4] in ("sum", "mean"))
    )


@pytest.mark.parametrize("letter", sorted({family(sample) for sample in SAMPLES}))
def test_sums_have_an_order_where_that_is_asked_for(letter: str):
    """And no update takes pinned memory."""
    violations, pinned = set(), []

    class Refused(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if refused(func, args) and any(
                isinstance(value, Tensor) and value.is_cuda for value in (*args, out)
            ):
                violations.add((sample.label, func._schema.name))
            if func._schema.name.endswith("pin_memory") or (kwargs or {}).get("pin_memory"):
                pinned.append(sample.label)
            return out

    torch.use_deterministic_algorithms(True)
    try:
        with gapless.emulate(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in SAMPLES:
                if family(sample) == letter:
                    metric, data = sample.make().to("cuda"), sample.data(0, "cuda")
                    metric.update(*data)
                    with Refused():
                        metric.update(*data)
                        metric(*data)
                        assert not pinned
                        metric.compute()
                    pinned.clear()  # a result, or what was bad, on its way to the host
    finally:
        torch.use_deterministic_algorithms(False)
    assert not violations
