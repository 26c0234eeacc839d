"""COCO's evaluation of boxes, one detection after the other, as a reference for the metric.

It was compared with pycocotools 2.0.11 when it was written (docs/metrics.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

AREAS = ((0.0, 1e10), (0.0, 1024.0), (1024.0, 9216.0), (9216.0, 1e10))
Box = Sequence[float]


def overlap(detection: Box, truth: Box, crowd: bool) -> float:
    """Return the IoU of boxes (corner, width, height); for a crowd, the share of the detection."""
    width = min(detection[0] + detection[2], truth[0] + truth[2]) - max(detection[0], truth[0])
    height = min(detection[1] + detection[3], truth[1] + truth[3]) - max(detection[1], truth[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    area = detection[2] * detection[3]
    return common / (area if crowd else area + truth[2] * truth[3] - common)


def outcomes(
    detections: list[Any], truths: list[Any], min_iou: float, area: tuple[float, float]
) -> list[Any]:
    """Return (score, is a hit, is ignored) for each detection, from the highest score."""

    def outside(size: float) -> bool:
        return size < area[0] or size > area[1]

    ignored = [crowd or outside(size) for _, size, crowd in truths]
    taken, result = set(), []
    for score, box in detections:
        may = []
        for i, (other, _, crowd) in enumerate(truths):
            iou = overlap(box, other, crowd)
            if iou >= min(min_iou, 1 - 1e-10) and (i not in taken or crowd):
                may.append((not ignored[i], iou, i))
        if may:
            counts, _, i = max(may)
            taken.add(i)
            result.append((score, counts, not counts))
        else:
            result.append((score, False, outside(box[2] * box[3])))
    return result


def curve(images: list[Any], truths: int, recalls: Sequence[float]) -> tuple[list[float], float]:
    """Return precision at each recall level, and the final recall, from the outcomes of all images."""
    rows = sorted((row for image in images for row in image), key=lambda row: -row[0])
    counted = [hit for _, hit, ignored in rows if not ignored]
    if not truths:
        return [-1.0] * len(recalls), -1.0
    hits = np.cumsum(counted)
    precision = [float(hit) / (i + 1) for i, hit in enumerate(hits)]
    best = [max(precision[i:], default=0.0) for i in range(len(precision))]
    reached = [float(hit) / truths for hit in hits]
    return [
        next((p for p, r in zip(best, reached, strict=True) if r >= recall), 0.0) for recall in recalls
    ], max(reached, default=0.0)


def evaluate(
    preds: list[Any],
    target: list[Any],
    ious: Sequence[float],
    recalls: Sequence[float],
    numbers: Sequence[int],
    micro: bool = False,
) -> tuple[Any, Any, list[int]]:
    """Return precision ``[T, R, K, A, M]``, recall ``[T, K, A, M]`` and the labels.

    Images are as the metric takes them, with boxes of a corner, width and height.
    """
    labels = sorted({label for items in (*preds, *target) for label in items["labels"].tolist()})
    classes: list[Any] = ([None] if labels else []) if micro else labels
    precision = np.zeros((len(ious), len(recalls), len(classes), 4, len(numbers)))
    recall = np.zeros((len(ious), len(classes), 4, len(numbers)))
    for k, label in enumerate(classes):
        detections, ground_truths = zip(
            *(objects(*items, label) for items in zip(preds, target, strict=True)), strict=True
        )
        best = [sorted(items, key=lambda row: -row[0])[: numbers[-1]] for items in detections]
        for a, area in enumerate(AREAS):
            truths = sum(
                not crowd and area[0] <= size <= area[1]
                for image in ground_truths
                for _, size, crowd in image
            )
            for t, min_iou in enumerate(ious):
                rows = [outcomes(f, g, min_iou, area) for f, g in zip(best, ground_truths, strict=True)]
                for m, number in enumerate(numbers):
                    found_curve = curve([image[:number] for image in rows], truths, recalls)
                    precision[t, :, k, a, m], recall[t, k, a, m] = found_curve
    return precision, recall, labels


def objects(detected: Any, truth: Any, label: int | None) -> tuple[list[Any], list[Any]]:
    """Return an image's detections (score, box), and its ground truths (box, size, is a crowd)."""
    boxes, scores, labels = (detected[name].tolist() for name in ("boxes", "scores", "labels"))
    detections = [
        (s, b)
        for s, b, other_label in zip(scores, boxes, labels, strict=True)
        if label in (other_label, None)
    ]
    truths = []
    for i, (box, other_label) in enumerate(
        zip(truth["boxes"].tolist(), truth["labels"].tolist(), strict=True)
    ):
        if label in (other_label, None):
            size = float(truth["area"][i]) if "area" in truth else 0.0
            crowd = bool(truth["iscrowd"][i]) if "iscrowd" in truth else False
            truths.append((box, size if size > 0 else box[2] * box[3], crowd))
    return detections, truths


def mean(values: Any) -> float:
    """Return the mean of the values above -1; -1 if there are none."""
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else -1.0
