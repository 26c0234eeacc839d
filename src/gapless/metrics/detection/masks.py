"""Masks of objects: kept as how large they are, and what those of an image have in common."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.detection.objects import DETECTION, IMAGE, Item, Objects
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import storable

EXACT = 2**24
"""Pixels that float32 counts one by one."""


class Masks(Objects):
    """A table of images with masks: in place of each stands a box of as many pixels."""

    def __init__(self, iou_thresholds: Sequence[float], recalls: Sequence[float]) -> None:
        super().__init__("mask", iou_thresholds, recalls)

    def count(self, batch: Batch) -> None:
        kind, label, value, _, size, _ = batch.args
        nothing = torch.zeros_like(size)
        self.add(kind, label, value, torch.stack((nothing, nothing, size, nothing + 1), dim=1))


class Intersections(Rows):
    """Pixels in common, for each image those of its detections with what is there, detection by detection."""

    def __init__(self) -> None:
        super().__init__((), {"both": ((), torch.float64)}, checked=False)

    def count(self, batch: Batch) -> None:
        self.append(both=batch.args[5].to(storable(torch.float64, self.device)))


def mask_columns(preds: Sequence[Item], target: Sequence[Item]) -> tuple[Tensor, Tensor]:
    """The pixels of each row of these images, and of each pair in an image those in common."""
    if not len(target):
        return torch.zeros(0), torch.zeros(0)
    sizes: list[Tensor] = []
    common: list[Tensor] = []
    for found, there in zip(preds, target, strict=True):
        one, other = pixels(found["masks"]), pixels(there["masks"])
        sizes.extend((one.new_zeros(1), one.sum(1), other.sum(1)))
        if len(one) and len(other):
            with torch.autocast(one.device.type, enabled=False):
                common.append((one @ other.t()).flatten())
    return torch.cat(sizes), torch.cat(common) if common else sizes[0][:0]


def pixels(masks: Tensor) -> Tensor:
    """``[n, P]`` of 0 and 1, in a type that counts them exactly."""
    if not len(masks):
        return torch.zeros(0, 1, device=masks.device)
    flat = masks.flatten(1)
    return (flat != 0).to(torch.float32 if flat.shape[1] < EXACT else torch.float64)


def places_of_pairs(kind: Tensor) -> tuple[Tensor, Tensor]:
    """``[N]`` each: where the pairs of a detection begin, and which of these is that with what is there.

    The place of a pair is the sum of what the first has for its detection and the second for the other.
    """
    begins, is_found, is_there = kind == IMAGE, kind == DETECTION, kind > DETECTION
    image = begins.cumsum(0) - 1
    numbers = torch.zeros((2, len(kind)), dtype=torch.int64, device=kind.device)
    numbers.index_add_(1, image, torch.stack((is_found, is_there)).to(torch.int64))
    pairs = numbers[0] * numbers[1]
    before = numbers.cumsum(1) - numbers  # in earlier images
    of_found = is_found.cumsum(0) - 1 - before[0][image]
    of_there = is_there.cumsum(0) - 1 - before[1][image]
    return (pairs.cumsum(0) - pairs)[image] + of_found * numbers[1][image], of_there
