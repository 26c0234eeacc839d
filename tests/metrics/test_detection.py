"""Detection: boxes as COCO evaluates them, segments as TorchMetrics does, and refused inputs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torchmetrics.detection as theirs
from hypothesis import example, given, settings
from hypothesis import strategies as st
from metrics.coco import evaluate, mean
from metrics.samples import boxes, rasterize_boxes
from torch import Tensor

import gapless
import gapless.metrics as metrics
from gapless.metrics.detection import masks
from gapless.metrics.detection.mean_ap import float32_steps

IOUS, RECALLS = float32_steps(0.5, 0.95, 10), float32_steps(0.0, 1.0, 101)
SIDE = st.integers(0, 9)
BOX = st.tuples(SIDE, SIDE, st.integers(1, 9), st.integers(1, 9))
SCALE = st.sampled_from([1.0, 7.0, 40.0])
FOUND = st.lists(st.tuples(BOX, st.integers(0, 3), st.integers(-1, 2)), max_size=6)
THERE = st.lists(
    st.tuples(BOX, st.integers(-1, 2), st.booleans(), st.sampled_from([0, 50, 1024, 9216, 20000])), max_size=5
)


def column(values: list[Any], *shape: int) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(-1, *shape)


def as_items(
    images: list[tuple[list[Any], list[Any]]], scale: float, extra: bool
) -> tuple[list[Any], list[Any]]:
    """Return images as the metric takes them."""
    preds, target = [], []
    for detections, truths in images:
        box, score, label = zip(*detections, strict=True) if detections else ((), (), ())
        preds.append({"boxes": column(box, 4) * scale, "scores": column(score) / 4, "labels": ints(label)})
        box, label, crowd, area = zip(*truths, strict=True) if truths else ((), (), (), ())
        item = {"boxes": column(box, 4) * scale, "labels": ints(label)}
        target.append({**item, "iscrowd": ints(crowd), "area": column(area)} if extra else item)
    return preds, target


def ints(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.filterwarnings("ignore:Encountered more than")
@settings(max_examples=60, deadline=None)
@given(
    images=st.lists(st.tuples(FOUND, THERE), min_size=1, max_size=4),
    scale=SCALE,
    extra=st.booleans(),
    micro=st.booleans(),
    numbers=st.sampled_from([[1, 10, 100], [1, 2, 3], [2, 100, 200]]),
    split=st.integers(0, 4),
)
@example([([], []), ([], [])], 1.0, False, False, [1, 10, 100], 1)
def test_boxes_as_coco_evaluates_them(
    images: list[Any], scale: float, extra: bool, micro: bool, numbers: list[int], split: int
):
    preds, target = as_items(images, scale, extra)
    metric = metrics.MeanAveragePrecision(
        "xywh",
        max_detection_thresholds=numbers,
        average="micro" if micro else "macro",
        class_metrics=True,
        extended_summary=True,
    )
    for part in (slice(0, split), slice(split, None)):
        metric.update(preds[part], target[part])
    actual = metric.compute()
    precision, recall, labels = evaluate(preds, target, IOUS, RECALLS, numbers, micro)
    each, each_recall, _ = evaluate(preds, target, IOUS, RECALLS, numbers)
    limit = numbers.index(100) if 100 in numbers else 2
    assert actual["classes"].flatten().tolist() == labels
    assert actual["precision"].numpy() == pytest.approx(precision)
    assert actual["recall"].numpy() == pytest.approx(recall)
    expected: dict[str, Any] = {
        "map": mean(precision[..., 0, limit]),
        "map_50": mean(precision[0, ..., 0, -1]),
        "map_75": mean(precision[5, ..., 0, -1]),
        "map_per_class": each[:, :, :, 0, limit].mean((0, 1)),
        f"mar_{numbers[-1]}_per_class": each_recall[:, :, 0, -1].mean(0),
    }
    for area, name in enumerate(("small", "medium", "large"), 1):
        expected[f"map_{name}"] = mean(precision[..., area, -1])
        expected[f"mar_{name}"] = mean(recall[..., area, -1])
    expected.update({f"mar_{number}": mean(recall[..., 0, m]) for m, number in enumerate(numbers)})
    for name, value in expected.items():
        assert actual[name].flatten().tolist() == pytest.approx(torch.tensor(value).flatten().tolist()), name


@pytest.mark.parametrize("box_format", ["xyxy", "cxcywh"])
def test_formats_of_boxes_are_the_same_boxes(box_format: str):
    preds, target = boxes(extra=True)(torch.Generator().manual_seed(1), "cpu")
    results = []
    for name in ("xywh", box_format):
        metric = metrics.MeanAveragePrecision(name)
        metric.update(*([convert_boxes(item, name) for item in items] for items in (preds, target)))
        results.append(metric.compute())
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert results[0]["map"] > 0


def convert_boxes(item: dict[str, Tensor], box_format: str) -> dict[str, Tensor]:
    """Return an item with its corner boxes in another format; halves in centres are exact."""
    low, high = item["boxes"].reshape(-1, 2, 2).unbind(1)
    first, second = {
        "xyxy": (low, high),
        "xywh": (low, high - low),
        "cxcywh": ((low + high) / 2, high - low),
    }[box_format]
    return {**item, "boxes": torch.cat((first, second), 1)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_boxes_of_other_precision(dtype: torch.dtype):
    """Corners are integers, which every dtype holds exactly; scores are rounded first."""
    preds, target = boxes(extra=True)(torch.Generator().manual_seed(3), "cpu")
    names = ("boxes", "scores", "area")
    results = []
    for wide in (dtype, torch.float32):
        metric = metrics.MeanAveragePrecision()
        cast = [
            [{k: v.to(dtype).to(wide) if k in names else v for k, v in item.items()} for item in items]
            for items in (preds, target)
        ]
        metric.update(*cast)
        results.append(metric.compute())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert metric.set_dtype(torch.float64).compute()["map"].dtype == torch.float64


def test_boxes_wait_once_in_compute_and_nowhere_else():
    with gapless.emulate() as emulator:
        metric = metrics.MeanAveragePrecision(class_metrics=True, extended_summary=True).to("cuda")
        for seed in range(3):
            metric.update(*boxes(extra=seed > 0)(torch.Generator().manual_seed(seed), "cuda"))
        assert emulator.waits == 0, emulator.session.sites
        result = metric.compute()
        assert emulator.waits == 1, emulator.session.sites
        assert all(value.is_cuda for value in result.values())


@settings(max_examples=40, deadline=None)
@given(
    images=st.lists(st.tuples(FOUND, THERE), min_size=1, max_size=3),
    extra=st.booleans(),
    micro=st.booleans(),
    split=st.integers(0, 3),
    dtype=st.sampled_from([torch.bool, torch.uint8, torch.float32]),
    narrow=st.booleans(),
)
def test_masks_of_boxes_are_these_boxes(
    images: list[Any], extra: bool, micro: bool, split: int, dtype: torch.dtype, narrow: bool
):
    preds, target = as_items(images, 1.0, extra)
    for item in (*preds, *target):
        corner, size = item["boxes"].split(2, 1)
        item["masks"] = rasterize_boxes(torch.cat((corner, corner + size), 1), 18, 18).to(dtype)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "MAX_FLOAT32_PIXELS", 9 if narrow else 2**24)
        for kinds in ("bbox", "segm", ("segm", "bbox")):
            average = "micro" if micro else "macro"
            metric = metrics.MeanAveragePrecision("xywh", kinds, class_metrics=True, average=average)
            for part in (slice(0, split), slice(split, None)):
                with torch.autocast("cpu", torch.bfloat16):
                    metric.update(preds[part], target[part])
            results.append(metric.compute())
    of_boxes, of_masks, of_both = results
    assert of_boxes.keys() == of_masks.keys()
    for name, value in of_boxes.items():
        assert torch.equal(value, of_masks[name]), name
        for prefix in ("bbox_", "segm_"):
            assert torch.equal(value, of_both[name if name == "classes" else prefix + name]), name


@pytest.mark.parametrize(("kinds", "waits"), [("segm", 1), (("bbox", "segm"), 2)])
def test_masks_wait_once_for_each_kind(kinds: Any, waits: int):
    with gapless.emulate() as emulator:
        metric = metrics.MeanAveragePrecision(iou_type=kinds).to("cuda")
        for seed in range(2):
            metric.update(*boxes(extra=True, masks=True)(torch.Generator().manual_seed(seed), "cuda"))
        assert emulator.waits == 0, emulator.session.sites
        metric.compute()
        assert emulator.waits == waits, emulator.session.sites


def test_masks_without_an_image():
    metric = metrics.MeanAveragePrecision(iou_type=("segm", "bbox"))
    metric.update([], [])
    assert {value.item() for name, value in metric.compute().items() if name != "classes"} == {-1.0}


def test_more_detections_than_count_are_warned_of():
    preds = [{"boxes": torch.ones(3, 4), "scores": torch.ones(3), "labels": torch.ones(3).int()}]
    target = [{"boxes": torch.ones(1, 4), "labels": torch.ones(1).int()}]
    metric = metrics.MeanAveragePrecision(max_detection_thresholds=[1, 1, 2])
    with pytest.warns(UserWarning, match="more than 2 detections in a single image"):
        metric.update(preds, target)
    metric.warn_on_many_detections = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.update(preds, target)


def test_no_image_is_no_score():
    metric = metrics.MeanAveragePrecision()
    metric.update([], [])
    result = metric.compute()
    assert result.pop("classes").shape == (0,)
    assert {value.item() for value in result.values()} == {-1.0}


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"box_format": "x"}, ValueError, "`box_format` to be one of"),
    ({"iou_type": "x"}, ValueError, "`iou_type` to be one of"),
    ({"iou_type": ("bbox", "x")}, ValueError, "or a tuple of, but got"),
    ({"iou_thresholds": 0.5}, ValueError, "`iou_thresholds` to either be"),
    ({"rec_thresholds": (0.5,)}, ValueError, "`rec_thresholds` to either be"),
    ({"max_detection_thresholds": [1, 2]}, ValueError, "should have length 3. Got value 2"),
    ({"class_metrics": 1}, ValueError, "`class_metrics` to be a boolean"),
    ({"extended_summary": 1}, ValueError, "`extended_summary` to be a boolean"),
    ({"average": "weighted"}, ValueError, "`average` to be one of"),
    ({"backend": "x"}, ValueError, "`backend` to be one of"),
]


@pytest.mark.parametrize(("options", "error", "words"), OPTIONS)
def test_constructors_refuse(options: dict[str, Any], error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        metrics.MeanAveragePrecision(**options)


BOXES, SCORES, LABELS = torch.zeros(2, 4), torch.zeros(2), torch.zeros(2).int()
GOOD = {"boxes": BOXES, "scores": SCORES, "labels": LABELS}
WRONG: list[tuple[Any, Any, str]] = [
    (GOOD, [GOOD], "`preds` to be of type Sequence"),
    ([GOOD], [], "to have the same length"),
    ([{"boxes": BOXES, "labels": LABELS}], [GOOD], "`preds` to contain the `scores` key"),
    ([GOOD], [{"boxes": BOXES}], "`target` to contain the `labels` key"),
    ([{**GOOD, "scores": [1, 2]}], [GOOD], "all scores in `preds` to be of type Tensor"),
    ([{**GOOD, "scores": SCORES[:1]}], [GOOD], "labels and scores of sample 0 in predictions"),
    ([GOOD], [GOOD, {**GOOD, "labels": LABELS[:1]}][1:], "labels of sample 0 in targets"),
    ([GOOD], [{**GOOD, "boxes": torch.zeros(2, 3)}], "expected 4 values"),
    ([{**GOOD, "labels": SCORES}], [GOOD], "value of type integer, got torch.float32"),
]


@pytest.mark.parametrize(("preds", "target", "words"), WRONG)
def test_what_are_no_boxes_is_refused(preds: Any, target: Any, words: str):
    with pytest.raises(ValueError, match=words):
        metrics.MeanAveragePrecision().update(preds, target)


# Segments.

SHAPE = st.sampled_from([(5,), (4, 6), (2, 3, 4)])


@settings(max_examples=60, deadline=None)
@given(
    shape=SHAPE,
    images=st.integers(1, 3),
    kinds=st.integers(1, 5),
    instances=st.sampled_from([1, 2, 3, 2**40]),
    dtype=st.sampled_from([torch.int64, torch.int32, torch.float64]),
    alike=st.sampled_from([0.0, 0.6, 0.9, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_segments_as_torchmetrics(
    shape: tuple[int, ...],
    images: int,
    kinds: int,
    instances: int,
    dtype: torch.dtype,
    alike: float,
    seed: int,
):
    random = torch.Generator().manual_seed(seed)
    numbers = torch.tensor([3, 0, -7, 9, 4])
    high = instances if dtype != torch.int32 else min(instances, 2**31 - 1)

    def draw() -> Tensor:
        category = numbers[torch.randint(0, kinds, (images, *shape), generator=random)]
        instance = torch.randint(0, 3, (images, *shape), generator=random) * (high // 3) - high // 4
        return torch.stack((category, instance), -1).to(dtype)

    target, preds = draw(), draw()
    kept = torch.rand(images, *shape, 1, generator=random) < alike
    preds = torch.where(kept, target, preds)
    for name in ("PanopticQuality", "ModifiedPanopticQuality"):
        several: list[dict[str, bool]] = [{}]
        if name == "PanopticQuality":
            several += [{"return_sq_and_rq": True, "return_per_class": both} for both in (True, False)]
        for options in several:
            for stuffs in ({0, 9}, {0, 4}):  # 4 follows a thing
                results = []
                for home in (metrics, theirs):
                    metric = getattr(home, name)(
                        {3, -7}, stuffs, allow_unknown_preds_category=True, **options
                    )
                    metric.update(preds, target)
                    metric.update(target.flip(1), preds)
                    results.append(metric.compute())
                torch.testing.assert_close(*results, rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("name", ["PanopticQuality", "ModifiedPanopticQuality"])
def test_predictions_without_a_category_are_reported(name: str):
    preds, target = torch.zeros(2, 3, 2).long(), torch.zeros(2, 3, 2).long()
    preds[0, 1, 0] = 5
    metric = getattr(metrics, name)({0}, {1})
    with pytest.raises(ValueError, match=r"Unknown categories found: tensor\(\[\[5, 0\]\]\)"):
        metric.update(preds, target)
    metric.update(target, preds)  # those of the target are void
    with gapless.emulate() as emulator:
        metric = getattr(metrics, name)({0}, {1}).to("cuda")
        lenient = getattr(metrics, name)({0}, {1}, allow_unknown_preds_category=True).to("cuda")
        batch = [boxes.pin_memory().to("cuda", non_blocking=True) for boxes in (preds, target)]
        for metric_ in (metric, lenient):
            metric_.update(*batch)
        assert emulator.waits == 0
        with pytest.raises(RuntimeError, match="Detected 1 point of an unknown category in `preds`"):
            metric.check()
        lenient.check()
        assert metric.compute() == lenient.compute()


def test_a_batch_without_points_adds_nothing():
    metric = metrics.PanopticQuality({0}, {1})
    metric.update(torch.zeros(0, 4, 2), torch.zeros(0, 4, 2))
    metric.update(torch.zeros(2, 0, 2), torch.zeros(2, 0, 2))
    assert metric.compute().isnan()
    metric.update(torch.zeros(1, 4, 2), torch.zeros(1, 4, 2))
    assert metric.compute() == 1


POINTS = torch.zeros(1, 3, 2)
NO_POINTS: list[tuple[Any, Any, type[Exception], str]] = [
    ([1], POINTS, TypeError, "`preds` to be of type `torch.Tensor`"),
    (POINTS, None, TypeError, "`target` to be of type `torch.Tensor`"),
    (POINTS, POINTS[:, :2], ValueError, "to have the same shape"),
    (POINTS[0], POINTS[0], ValueError, "at least one spatial dimension"),
    (POINTS[..., :1], POINTS[..., :1], ValueError, "exactly 2 channels"),
]


@pytest.mark.parametrize(("preds", "target", "error", "words"), NO_POINTS)
def test_what_are_no_points_is_refused(preds: Any, target: Any, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        metrics.PanopticQuality({0}, {1}).update(preds, target)


CATEGORIES: list[tuple[Any, Any, type[Exception], str]] = [
    ({0.5}, {1}, TypeError, "`things` to contain `int` categories"),
    ({0}, {"sky"}, TypeError, "`stuffs` to contain `int` categories"),
    ({0}, {0}, ValueError, "to have distinct keys"),
    (set(), set(), ValueError, "must be non-empty"),
]


@pytest.mark.parametrize(("things", "stuffs", "error", "words"), CATEGORIES)
def test_categories_that_are_refused(things: Any, stuffs: Any, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        metrics.ModifiedPanopticQuality(things, stuffs)


def test_categories_twice_are_warned_of():
    with pytest.warns(UserWarning, match="The provided `stuffs` categories contained duplicates"):
        metric = metrics.PanopticQuality([0], [1, 1])
    assert (metric.things, metric.stuffs) == ({0}, {1})
