"""Mean average precision of detected boxes and masks, as COCO's evaluation has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.detection.averaging import Curves, average, curves
from gapless.metrics.detection.masks import Intersections, Masks, mask_columns
from gapless.metrics.detection.matching import Evaluated, evaluated
from gapless.metrics.detection.objects import DETECTION, FORMATS, Item, Objects, check_items, columns_of
from gapless.metrics.metric import Metric

SHAPES = {"bbox": "boxes", "segm": "masks"}
BACKENDS = ("pycocotools", "faster_coco_eval")
LIMIT = 100
"""The number of detections at which COCO gives its first value."""
SIZES = ("_small", "_medium", "_large")


class MeanAveragePrecision(Metric):
    """Mean average precision and recall of detected boxes, or of masks.

    Boxes are kept on the device; of masks, how many pixels they have, and any two of an image in common. All
    images are matched together in ``compute``, which **waits** once (for each `iou_type`), to learn how many
    objects there are. Neither pycocotools nor torchvision is needed.

    Args:
        box_format: ``"xyxy"`` (two corners), ``"xywh"`` (a corner, width and height) or ``"cxcywh"`` (the
            centre, width and height).
        iou_type: ``"bbox"`` for boxes, ``"segm"`` for masks, or both as a tuple: with both, names of values
            begin with these.
        iou_thresholds: from which overlap on a detection is a hit; None for 0.5 to 0.95 in steps of 0.05.
        rec_thresholds: the recalls at which precision is taken; None for 0 to 1 in steps of 0.01.
        max_detection_thresholds: three numbers of detections per image and class, of which the best count;
            None for 1, 10 and 100. ``map`` is at 100 where that is one of them, else at the largest.
        class_metrics: whether there are values per class.
        extended_summary: whether there are the curves as well, as ``precision``, ``recall`` and ``scores``.
        average: ``"macro"`` for the mean over classes, ``"micro"`` to take all classes for one.
        backend: accepted as TorchMetrics has it; nothing follows from it.

    Example:
        >>> found = {"boxes": torch.tensor([[258.0, 41.0, 606.0, 285.0]]), "scores": torch.tensor([0.5])}
        >>> there = {"boxes": torch.tensor([[214.0, 41.0, 562.0, 285.0]]), "labels": torch.tensor([0])}
        >>> metric = MeanAveragePrecision()
        >>> metric.update([{**found, "labels": torch.tensor([0])}], [there])
        >>> [round(metric.compute()[name].item(), 3) for name in ("map", "map_75", "mar_large")]
        [0.6, 1.0, 0.6]
    """

    is_differentiable = False
    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    direct = True
    function: ClassVar[str | None] = None
    warn_on_many_detections = True
    boxes: Objects
    masks: Masks
    intersections: Intersections

    def __init__(
        self,
        box_format: str = "xyxy",
        iou_type: str | tuple[str, ...] = "bbox",
        iou_thresholds: list[float] | None = None,
        rec_thresholds: list[float] | None = None,
        max_detection_thresholds: list[int] | None = None,
        class_metrics: bool = False,
        extended_summary: bool = False,
        average: str = "macro",
        backend: str = "pycocotools",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        checks.one_of("box_format", box_format, FORMATS, comma="")
        check_iou_type(iou_type)
        check_lists(iou_thresholds, rec_thresholds, max_detection_thresholds)
        for name, value in (("class_metrics", class_metrics), ("extended_summary", extended_summary)):
            if not isinstance(value, bool):
                raise ValueError(f"Expected argument `{name}` to be a boolean")
        checks.one_of("average", average, ("macro", "micro"), comma="")
        checks.one_of("backend", backend, BACKENDS, comma="")
        self.box_format = box_format
        self.iou_type = (iou_type,) if isinstance(iou_type, str) else iou_type
        self.iou_thresholds = iou_thresholds or float32_steps(0.5, 0.95, 10)
        self.rec_thresholds = rec_thresholds or float32_steps(0.0, 1.0, 101)
        self.max_detection_thresholds = sorted(max_detection_thresholds or [1, 10, 100])
        self.class_metrics = class_metrics
        self.extended_summary = extended_summary
        self.average = average
        steps = (self.iou_thresholds, self.rec_thresholds)
        if "bbox" in self.iou_type:
            self.use("boxes", Objects(box_format, *steps))
        if "segm" in self.iou_type:
            self.use("masks", Masks(*steps))
            self.use("intersections", Intersections())

    def update(self, preds: Sequence[Item], target: Sequence[Item]) -> None:
        """Add images: of each a dictionary of what was found and one of what is there.

        Both have ``boxes``, ``(n, 4)`` in pixels, or ``masks``, ``(n, height, width)`` where what is not 0 is
        the object, as `iou_type` says.

        Args:
            preds: with these, ``scores`` ``(n,)``, and ``labels`` ``(n,)`` of
                integers.
            target: with these and ``labels`` ``(m,)``, and if wanted ``iscrowd`` ``(m,)``, 1
                for what is many objects in one, and ``area`` ``(m,)`` in pixels (0 for that of the box).

        Raises:
            ValueError: something is missing, has another length or another type.
        """
        shapes = tuple(SHAPES[kind] for kind in self.iou_type)
        check_items(preds, target, shapes)
        limit = self.max_detection_thresholds[-1]
        if self.warn_on_many_detections and any(len(one["labels"]) > limit for one in preds):
            checks.warn(
                f"Encountered more than {limit} detections in a single image: beyond {limit} of a class "
                "those with the lowest scores do not count. With larger `max_detection_thresholds` they do; "
                "`warn_on_many_detections=False` on the metric ends this warning."
            )
        rows = columns_of(preds, target, "boxes" in shapes)
        if "masks" in shapes:
            size, both = mask_columns(preds, target)
            rows = [*rows[:2], torch.where((rows[0] > DETECTION) & (rows[2] <= 0), size, rows[2]), rows[3]]
            rows += [size, both]
        self.observe(*rows)

    def value(self) -> dict[str, Tensor]:
        labels = torch.zeros(0, dtype=torch.int32, device=self._parts[0].device)
        result: dict[str, Tensor] = {}
        for kind in self.iou_type:
            prefix = "" if len(self.iou_type) == 1 else f"{kind}_"
            table: Objects = self.boxes if kind == "bbox" else self.masks
            if table.empty:
                found: dict[str, Tensor] = dict.fromkeys(self._keys(), self._minus_one())
            else:
                found, labels = self._of(table, self.intersections if kind == "segm" else None)
            result.update({prefix + name: value for name, value in found.items()})
        return {**result, "classes": labels.to(torch.int32)}

    def _of(self, table: Objects, intersections: Intersections | None) -> tuple[dict[str, Tensor], Tensor]:
        """The values of boxes, or of masks, and the labels there are."""
        most = self.max_detection_thresholds[-1]
        found = evaluated(table, most, self.average == "micro", intersections)
        each = self._curves(found, table.recalls)
        result = self._summary(each, found.truths)
        if self.extended_summary:
            result.update(precision=each.precision, recall=each.recall, scores=each.scores)
        if self.class_metrics:
            if self.average == "micro":
                each = self._curves(evaluated(table, most, False, intersections), table.recalls)
            precision, recall = each.precision[:, :, :, 0, self._at_limit], each.recall[:, :, 0, -1]
            for name, one in zip(self._keys()[-2:], (precision.mean((0, 1)), recall.mean(0)), strict=True):
                result[name] = one.to(self.dtype)
        return result, found.labels

    @property
    def _at_limit(self) -> int:
        """Which of the numbers of detections ``map`` is at."""
        numbers = self.max_detection_thresholds
        return numbers.index(LIMIT) if LIMIT in numbers else len(numbers) - 1

    def _minus_one(self) -> Tensor:
        return torch.full((), -1.0, dtype=self.dtype, device=self._parts[0].device)

    def _keys(self) -> list[str]:
        low, middle, high = self.max_detection_thresholds
        names = ["map", "map_50", "map_75", *(f"map{size}" for size in SIZES)]
        names += [f"mar_{low}", f"mar_{middle}", f"mar_{high}", *(f"mar{size}" for size in SIZES)]
        return [*names, "map_per_class", f"mar_{high}_per_class"]

    def _curves(self, found: Evaluated, recalls: Tensor) -> Curves:
        at = None if self.extended_summary else self._at_limit
        return curves(found, self.max_detection_thresholds, at, recalls)

    def _summary(self, each: Curves, truths: Tensor) -> dict[str, Tensor]:
        """All values but those per class."""
        precision, recall, everything, at = each.precision, each.recall, truths[:, :1], self._at_limit
        values = [average(precision[..., 0, at : at + 1], everything)]
        for level in (0.5, 0.75):
            if level in self.iou_thresholds:
                one = precision[self.iou_thresholds.index(level), ..., 0, -1:]
                values.append(average(one, everything))
            else:
                values.append(self._minus_one().to(precision.dtype).reshape(1))
        values.append(average(precision[..., 1:, -1], truths[:, 1:]))
        values.append(average(recall[..., 0, :], everything))
        values.append(average(recall[..., 1:, -1], truths[:, 1:]))
        summary = torch.cat(values).to(self.dtype).unbind()
        per_class = dict.fromkeys(self._keys()[-2:], self._minus_one())
        return {**dict(zip(self._keys(), summary, strict=False)), **per_class}


def float32_steps(low: float, high: float, count: int) -> list[float]:
    """Steps as TorchMetrics has them, rounded to float32."""
    steps: list[float] = torch.linspace(low, high, count, dtype=torch.float32, device="cpu").tolist()
    return steps


def check_iou_type(given: Any) -> None:
    """Raises ValueError for what is no kind of overlap."""
    several = (given,) if isinstance(given, str) else given
    if any(one not in ("segm", "bbox") for one in several):
        raise ValueError(
            f"Expected argument `iou_type` to be one of ('segm', 'bbox') or a tuple of, but got {several}"
        )


def check_lists(ious: Any, recalls: Any, numbers: Any) -> None:
    """Raises ValueError unless each is None or a list, of three for `numbers`."""
    for name, given, kind in (
        ("iou_thresholds", ious, "floats"),
        ("rec_thresholds", recalls, "floats"),
        ("max_detection_thresholds", numbers, "ints"),
    ):
        if given is not None and not isinstance(given, list):
            raise ValueError(
                f"Expected argument `{name}` to either be `None` or a list of {kind} but got {given}"
            )
    if numbers is not None and len(numbers) != 3:
        raise ValueError(
            "When providing a list of max detection thresholds it should have length 3."
            f" Got value {len(numbers)}"
        )
