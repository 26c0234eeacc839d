"""COCO's evaluation of boxes, one detection after the other: what the metric's results are compared with.

It was compared with pycocotools 2.0.11 when it was written (docs/metrics.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

AREAS = ((0.0, 1e10), (0.0, 1024.0), (1024.0, 9216.0), (9216.0, 1e10))
Box = Sequence[float]


def overlap(found: Box, there: Box, crowd: bool) -> float:
    """IoU of boxes with a corner, width and height; of a crowd, the share of what was found."""
    width = min(found[0] + found[2], there[0] + there[2]) - max(found[0], there[0])
    height = min(found[1] + found[3], there[1] + there[3]) - max(found[1], there[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    area = found[2] * found[3]
    return both / (area if crowd else area + there[2] * there[3] - both)


def outcomes(found: list[Any], there: list[Any], least: float, area: tuple[float, float]) -> list[Any]:
    """Of each detection, the best first: its score, whether it is a hit, and whether it is to be ignored."""

    def outside(size: float) -> bool:
        return size < area[0] or size > area[1]

    ignored = [crowd or outside(size) for _, size, crowd in there]
    taken, result = set(), []
    for score, box in found:
        may = []
        for i, (other, _, crowd) in enumerate(there):
            iou = overlap(box, other, crowd)
            if iou >= min(least, 1 - 1e-10) and (i not in taken or crowd):
                may.append((not ignored[i], iou, i))
        if may:
            counts, _, i = max(may)
            taken.add(i)
            result.append((score, counts, not counts))
        else:
            result.append((score, False, outside(box[2] * box[3])))
    return result


def curve(images: list[Any], truths: int, recalls: Sequence[float]) -> tuple[list[float], float]:
    """Precision at each recall, and the recall of all, of the outcomes in each image."""
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
    """Precision ``[T, R, K, A, M]`` and recall ``[T, K, A, M]``, and the labels, of images as the metric has
    them, with boxes of a corner, width and height.
    """
    labels = sorted({label for one in (*preds, *target) for label in one["labels"].tolist()})
    classes: list[Any] = ([None] if labels else []) if micro else labels
    precision = np.zeros((len(ious), len(recalls), len(classes), 4, len(numbers)))
    recall = np.zeros((len(ious), len(classes), 4, len(numbers)))
    for k, label in enumerate(classes):
        found, there = zip(*(objects(*one, label) for one in zip(preds, target, strict=True)), strict=True)
        best = [sorted(one, key=lambda row: -row[0])[: numbers[-1]] for one in found]
        for a, area in enumerate(AREAS):
            truths = sum(
                not crowd and area[0] <= size <= area[1] for image in there for _, size, crowd in image
            )
            for t, least in enumerate(ious):
                rows = [outcomes(f, g, least, area) for f, g in zip(best, there, strict=True)]
                for m, number in enumerate(numbers):
                    found_curve = curve([image[:number] for image in rows], truths, recalls)
                    precision[t, :, k, a, m], recall[t, k, a, m] = found_curve
    return precision, recall, labels


def objects(found: Any, there: Any, label: int | None) -> tuple[list[Any], list[Any]]:
    """What was found in an image, as scores and boxes; what is there, as boxes, sizes and whether crowds."""
    boxes, scores, labels = (found[name].tolist() for name in ("boxes", "scores", "labels"))
    detections = [(s, b) for s, b, one in zip(scores, boxes, labels, strict=True) if label in (one, None)]
    truths = []
    for i, (box, one) in enumerate(zip(there["boxes"].tolist(), there["labels"].tolist(), strict=True)):
        if label in (one, None):
            size = float(there["area"][i]) if "area" in there else 0.0
            crowd = bool(there["iscrowd"][i]) if "iscrowd" in there else False
            truths.append((box, size if size > 0 else box[2] * box[3], crowd))
    return detections, truths


def mean(values: Any) -> float:
    """The mean of what is there; -1 where nothing is."""
    there = values[values > -1]
    return float(there.mean()) if there.size else -1.0
