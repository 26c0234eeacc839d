"""Mean average precision of detected boxes and masks, as defined by COCO's evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.detection.averaging import DetectionCurves, compute_curves, mean_over_classes
from gapless.metrics.detection.masks import MaskIntersections, MaskTable, measure_masks
from gapless.metrics.detection.matching import Evaluation, evaluate
from gapless.metrics.detection.objects import (
    BOX_FORMATS,
    DETECTION,
    ImageObjects,
    ObjectTable,
    check_images,
    collect_rows,
)
from gapless.metrics.metric import Metric

ITEM_KEYS = {"bbox": "boxes", "segm": "masks"}
"""The key of an image's objects, by `iou_type`."""
BACKENDS = ("pycocotools", "faster_coco_eval")
COCO_DETECTION_LIMIT = 100
"""The number of detections per image for which COCO reports its main value."""
SIZE_SUFFIXES = ("_small", "_medium", "_large")


class MeanAveragePrecision(Metric):
    """Mean average precision and recall of detected boxes or masks.

    Boxes are kept on the device; of masks only their sizes and intersections within an image are kept. All
    images are matched together in ``compute``, which **waits** once per `iou_type` for the number of objects.
    Neither pycocotools nor torchvision is needed.

    Args:
        box_format: ``"xyxy"`` (two corners), ``"xywh"`` (a corner, width and height) or ``"cxcywh"`` (the
            centre, width and height).
        iou_type: ``"bbox"`` for boxes, ``"segm"`` for masks, or both as a tuple; with both, result names
            are prefixed with these.
        iou_thresholds: the IoUs from which a detection is a hit; None for 0.5 to 0.95 in steps of 0.05.
        rec_thresholds: the recalls at which precision is taken; None for 0 to 1 in steps of 0.01.
        max_detection_thresholds: three limits on the detections per image and class, of which the best count;
            None for 1, 10 and 100. ``map`` is at 100 if that is one of them, else at the largest.
        class_metrics: whether to return values per class.
        extended_summary: whether to return the curves as ``precision``, ``recall`` and ``scores``, too.
        average: ``"macro"`` for the mean over classes, ``"micro"`` to treat all classes as one.
        backend: accepted for TorchMetrics' sake; it has no effect.

    Example:
        >>> pred = {"boxes": torch.tensor([[258.0, 41.0, 606.0, 285.0]]), "scores": torch.tensor([0.5])}
        >>> target = {"boxes": torch.tensor([[214.0, 41.0, 562.0, 285.0]]), "labels": torch.tensor([0])}
        >>> metric = MeanAveragePrecision()
        >>> metric.update([{**pred, "labels": torch.tensor([0])}], [target])
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
    boxes: ObjectTable
    masks: MaskTable
    intersections: MaskIntersections

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
        checks.check_one_of("box_format", box_format, BOX_FORMATS, comma="")
        check_iou_type(iou_type)
        check_lists(iou_thresholds, rec_thresholds, max_detection_thresholds)
        for name, value in (("class_metrics", class_metrics), ("extended_summary", extended_summary)):
            if not isinstance(value, bool):
                raise ValueError(f"Expected argument `{name}` to be a boolean")
        checks.check_one_of("average", average, ("macro", "micro"), comma="")
        checks.check_one_of("backend", backend, BACKENDS, comma="")
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
            self.use("boxes", ObjectTable(box_format, *steps))
        if "segm" in self.iou_type:
            self.use("masks", MaskTable(*steps))
            self.use("intersections", MaskIntersections())

    def update(self, preds: Sequence[ImageObjects], target: Sequence[ImageObjects]) -> None:
        """Add images: for each a dictionary of detections and one of ground truth.

        Both have ``boxes``, ``(n, 4)`` in pixels, or ``masks``, ``(n, height, width)`` and not 0 inside the
        object, depending on `iou_type`.

        Args:
            preds: boxes or masks, ``scores`` ``(n,)``, and ``labels`` ``(n,)`` of integers.
            target: boxes or masks, and ``labels`` ``(m,)``; optionally ``iscrowd`` ``(m,)``, 1 for several
                objects in one, and ``area`` ``(m,)`` in pixels (0 for that of the box).

        Raises:
            ValueError: a key is missing, or a value has the wrong length or type.
        """
        shapes = tuple(ITEM_KEYS[kind] for kind in self.iou_type)
        check_images(preds, target, shapes)
        limit = self.max_detection_thresholds[-1]
        if self.warn_on_many_detections and any(len(item["labels"]) > limit for item in preds):
            checks.warn(
                f"Encountered more than {limit} detections in a single image: beyond {limit} of a class "
                "those with the lowest scores do not count. With larger `max_detection_thresholds` they do; "
                "`warn_on_many_detections=False` on the metric ends this warning."
            )
        rows = collect_rows(preds, target, "boxes" in shapes)
        if "masks" in shapes:
            size, common = measure_masks(preds, target)
            rows = [*rows[:2], torch.where((rows[0] > DETECTION) & (rows[2] <= 0), size, rows[2]), rows[3]]
            rows += [size, common]
        self.observe(*rows)

    def value(self) -> dict[str, Tensor]:
        labels = torch.zeros(0, dtype=torch.int32, device=self.device)
        result: dict[str, Tensor] = {}
        for kind in self.iou_type:
            prefix = "" if len(self.iou_type) == 1 else f"{kind}_"
            table: ObjectTable = self.boxes if kind == "bbox" else self.masks
            if table.is_empty:
                values: dict[str, Tensor] = dict.fromkeys(self._result_names(), self._undefined())
            else:
                values, labels = self._evaluate(table, self.intersections if kind == "segm" else None)
            result.update({prefix + name: value for name, value in values.items()})
        return {**result, "classes": labels.to(torch.int32)}

    def _evaluate(
        self, table: ObjectTable, intersections: MaskIntersections | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the values of boxes or masks, and the labels that occur."""
        max_detections = self.max_detection_thresholds[-1]
        evaluation = evaluate(table, max_detections, self.average == "micro", intersections)
        results = self._compute_curves(evaluation, table.recalls)
        result = self._summarize(results, evaluation.truths)
        if self.extended_summary:
            result.update(precision=results.precision, recall=results.recall, scores=results.scores)
        if self.class_metrics:
            if self.average == "micro":
                results = self._compute_curves(
                    evaluate(table, max_detections, False, intersections), table.recalls
                )
            precision, recall = results.precision[:, :, :, 0, self._main_limit], results.recall[:, :, 0, -1]
            for name, values in zip(
                self._result_names()[-2:], (precision.mean((0, 1)), recall.mean(0)), strict=True
            ):
                result[name] = values.to(self.dtype)
        return result, evaluation.labels

    @property
    def _main_limit(self) -> int:
        """The index of the detection limit that ``map`` uses."""
        numbers = self.max_detection_thresholds
        return numbers.index(COCO_DETECTION_LIMIT) if COCO_DETECTION_LIMIT in numbers else len(numbers) - 1

    def _undefined(self) -> Tensor:
        """Return -1, the value of a metric without ground truth."""
        return torch.full((), -1.0, dtype=self.dtype, device=self.device)

    def _result_names(self) -> list[str]:
        """Return the names of all values; the last two are those per class."""
        low, middle, high = self.max_detection_thresholds
        names = ["map", "map_50", "map_75", *(f"map{size}" for size in SIZE_SUFFIXES)]
        names += [f"mar_{low}", f"mar_{middle}", f"mar_{high}", *(f"mar{size}" for size in SIZE_SUFFIXES)]
        return [*names, "map_per_class", f"mar_{high}_per_class"]

    def _compute_curves(self, evaluation: Evaluation, recalls: Tensor) -> DetectionCurves:
        main_limit = None if self.extended_summary else self._main_limit
        return compute_curves(evaluation, self.max_detection_thresholds, main_limit, recalls)

    def _summarize(self, results: DetectionCurves, truths: Tensor) -> dict[str, Tensor]:
        """Return all values; those per class are -1 placeholders."""
        precision, recall, all_sizes, main_limit = (
            results.precision,
            results.recall,
            truths[:, :1],
            self._main_limit,
        )
        values = [mean_over_classes(precision[..., 0, main_limit : main_limit + 1], all_sizes)]
        for level in (0.5, 0.75):
            if level in self.iou_thresholds:
                at_level = precision[self.iou_thresholds.index(level), ..., 0, -1:]
                values.append(mean_over_classes(at_level, all_sizes))
            else:
                values.append(self._undefined().to(precision.dtype).reshape(1))
        values.append(mean_over_classes(precision[..., 1:, -1], truths[:, 1:]))
        values.append(mean_over_classes(recall[..., 0, :], all_sizes))
        values.append(mean_over_classes(recall[..., 1:, -1], truths[:, 1:]))
        summary = torch.cat(values).to(self.dtype).unbind()
        per_class = dict.fromkeys(self._result_names()[-2:], self._undefined())
        return {**dict(zip(self._result_names(), summary, strict=False)), **per_class}


def float32_steps(low: float, high: float, count: int) -> list[float]:
    """Return evenly spaced steps rounded to float32, as TorchMetrics has them."""
    steps: list[float] = torch.linspace(low, high, count, dtype=torch.float32, device="cpu").tolist()
    return steps


def check_iou_type(iou_type: Any) -> None:
    """Raise ValueError unless `iou_type` consists of ``"segm"`` and ``"bbox"``."""
    kinds = (iou_type,) if isinstance(iou_type, str) else iou_type
    if any(kind not in ("segm", "bbox") for kind in kinds):
        raise ValueError(
            f"Expected argument `iou_type` to be one of ('segm', 'bbox') or a tuple of, but got {kinds}"
        )


def check_lists(ious: Any, recalls: Any, numbers: Any) -> None:
    """Raise ValueError unless each is None or a list, and `numbers` a list of three."""
    for name, value, element in (
        ("iou_thresholds", ious, "floats"),
        ("rec_thresholds", recalls, "floats"),
        ("max_detection_thresholds", numbers, "ints"),
    ):
        if value is not None and not isinstance(value, list):
            raise ValueError(
                f"Expected argument `{name}` to either be `None` or a list of {element} but got {value}"
            )
    if numbers is not None and len(numbers) != 3:
        raise ValueError(
            "When providing a list of max detection thresholds it should have length 3."
            f" Got value {len(numbers)}"
        )
