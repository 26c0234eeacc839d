"""Masks of objects: only their sizes and the intersections within an image are kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.detection.objects import DETECTION, IMAGE, ImageObjects, ObjectTable
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import storable

MAX_FLOAT32_PIXELS = 2**24
"""Up to this number of pixels float32 sums are exact integers."""


class MaskTable(ObjectTable):
    """A table of images with masks, each represented by a box with as many pixels."""

    def __init__(self, iou_thresholds: Sequence[float], recalls: Sequence[float]) -> None:
        super().__init__("mask", iou_thresholds, recalls)

    def count(self, batch: Batch) -> None:
        kind, label, value, _, size, _ = batch.args
        zeros = torch.zeros_like(size)
        self.add(kind, label, value, torch.stack((zeros, zeros, size, zeros + 1), dim=1))


class MaskIntersections(Rows):
    """Common pixels of each detection with each ground truth of its image, detection by detection."""

    def __init__(self) -> None:
        super().__init__((), {"both": ((), torch.float64)}, checked=False)

    def count(self, batch: Batch) -> None:
        self.append(both=batch.args[5].to(storable(torch.float64, self.device)))


def measure_masks(preds: Sequence[ImageObjects], target: Sequence[ImageObjects]) -> tuple[Tensor, Tensor]:
    """Return the pixels of each row of the table, and the common pixels of each pair within an image."""
    if not len(target):
        return torch.zeros(0), torch.zeros(0)
    sizes: list[Tensor] = []
    common: list[Tensor] = []
    for detections, truths in zip(preds, target, strict=True):
        detected, true = flatten_masks(detections["masks"]), flatten_masks(truths["masks"])
        sizes.extend((detected.new_zeros(1), detected.sum(1), true.sum(1)))
        if len(detected) and len(true):
            with torch.autocast(detected.device.type, enabled=False):
                common.append((detected @ true.t()).flatten())
    return torch.cat(sizes), torch.cat(common) if common else sizes[0][:0]


def flatten_masks(masks: Tensor) -> Tensor:
    """Return masks as ``[n, P]`` of 0 and 1, in a dtype whose sums are exact."""
    if not len(masks):
        return torch.zeros(0, 1, device=masks.device)
    flat = masks.flatten(1)
    return (flat != 0).to(torch.float32 if flat.shape[1] < MAX_FLOAT32_PIXELS else torch.float64)


def pair_offsets(kind: Tensor) -> tuple[Tensor, Tensor]:
    """Return two offsets per row of the table, ``[N]`` each, by which pairs are found in `MaskIntersections`.

    The position of a pair is the first offset of its detection plus the second offset of its ground truth.
    """
    is_image, is_detection, is_truth = kind == IMAGE, kind == DETECTION, kind > DETECTION
    image = is_image.cumsum(0) - 1
    counts = torch.zeros((2, len(kind)), dtype=torch.int64, device=kind.device)
    counts.index_add_(1, image, torch.stack((is_detection, is_truth)).to(torch.int64))
    pairs = counts[0] * counts[1]
    before = counts.cumsum(1) - counts  # in earlier images
    detection_index = is_detection.cumsum(0) - 1 - before[0][image]
    truth_index = is_truth.cumsum(0) - 1 - before[1][image]
    return (pairs.cumsum(0) - pairs)[image] + detection_index * counts[1][image], truth_index
