"""Detected and ground-truth boxes of images, kept in one table until they are matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import storable

ImageObjects = Mapping[str, Tensor]
"""Boxes or masks, labels, and other values of the objects of one image, by name."""
IMAGE, DETECTION, TRUTH, CROWD = range(4)
"""Kinds of table rows. An image's objects follow its `IMAGE` row, so tables can be concatenated."""
AREA_RANGES = ((0.0, 1e10), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10))
"""Pixels of objects that count: all, small, medium, large, as COCO defines them."""
BOX_FORMATS = ("xyxy", "xywh", "cxcywh")


class ObjectTable(Rows):
    """A table of images with their detections and ground truth."""

    min_ious: Tensor
    smallest: Tensor
    largest: Tensor
    recalls: Tensor

    def __init__(self, box_format: str, iou_thresholds: Sequence[float], recalls: Sequence[float]) -> None:
        self.box_format = box_format
        with torch.device("cpu"):
            self.constants = {
                # As in pycocotools: rounding must not keep a full overlap below a threshold of 1.
                "min_ious": torch.tensor(
                    [min(threshold, 1 - 1e-10) for threshold in iou_thresholds], dtype=torch.float64
                ),
                "smallest": torch.tensor([low for low, _ in AREA_RANGES], dtype=torch.float64),
                "largest": torch.tensor([high for _, high in AREA_RANGES], dtype=torch.float64),
                "recalls": torch.tensor(recalls, dtype=torch.float64),
            }
        columns = {
            "kind": ((), torch.uint8),
            "label": ((), torch.int64),
            "value": ((), torch.float64),  # a detection's score, or the area of a ground truth
            "box": ((4,), torch.float64),
        }
        super().__init__((box_format, *iou_thresholds, None, *recalls), columns, checked=False)

    def count(self, batch: Batch) -> None:
        kind, label, value, box = batch.args[:4]
        self.add(kind, label, value, to_corner_format(box, self.box_format))

    def add(self, kind: Tensor, label: Tensor, value: Tensor, box: Tensor) -> None:
        """Add rows; boxes are a corner, width and height."""
        wide = storable(torch.float64, self.device)
        self.append(kind=kind, label=label.to(torch.int64), value=value.to(wide), box=box.to(wide))

    def is_outside(self, size: Tensor) -> Tensor:
        """Whether each size, ``[N]`` in pixels, is outside each area range: ``[N, A]`` of bool."""
        return (size.unsqueeze(1) < self.smallest) | (size.unsqueeze(1) > self.largest)

    @property
    def is_empty(self) -> bool:
        """Whether the host knows that the table has no image."""
        return not len(self.read("kind"))


def to_corner_format(box: Tensor, box_format: str) -> Tensor:
    """Convert boxes ``[N, 4]`` to top left corner, width and height."""
    if box_format == "xywh":
        return box
    a, b, c, d = box.unbind(-1)
    if box_format == "cxcywh":
        a, b, c, d = a - 0.5 * c, b - 0.5 * d, a + 0.5 * c, b + 0.5 * d
    return torch.stack((a, b, c - a, d - b), dim=-1)


def collect_rows(preds: Sequence[ImageObjects], target: Sequence[ImageObjects], boxes: bool) -> list[Tensor]:
    """Collect the table rows of these images, as columns: kind, label, value and, with `boxes`, the boxes.

    The number of kernels does not depend on the number of images, up to a few dozen.
    """
    if not len(target):
        nothing = torch.zeros(0, dtype=torch.uint8)
        return [nothing, nothing, nothing, nothing.reshape(0, 4)]
    device = target[0]["labels"].device
    marks = torch.arange(3, dtype=torch.uint8, device=device)
    nothing = marks[:1]
    columns: tuple[list[Tensor], ...] = ([], [], [], [])
    crowds: list[Tensor] = []
    for detected, truth in zip(preds, target, strict=True):
        detections, truths = (item["labels"].reshape(-1) for item in (detected, truth))
        n, m = len(detections), len(truths)
        area, crowd = truth.get("area"), truth.get("iscrowd")
        no_area = nothing.expand(m) if area is None else area.reshape(-1)
        columns[0].extend((nothing, marks[1:2].expand(n), marks[2:].expand(m)))
        columns[1].extend((nothing, detections, truths))
        columns[2].extend((nothing, detected["scores"].reshape(-1), no_area))
        if boxes:
            pair_boxes = (item["boxes"].reshape(-1, 4) for item in (detected, truth))
            columns[3].extend((nothing.expand(1, 4), *pair_boxes))
        crowds.extend((nothing.expand(1 + n), nothing.expand(m) if crowd is None else crowd.reshape(-1)))
    rows = [torch.cat(pieces) if pieces else nothing for pieces in columns]
    if any("iscrowd" in item for item in target):
        rows[0] = rows[0] + (torch.cat(crowds) != 0)
    return rows


def check_images(preds: Any, target: Any, shapes: tuple[str, ...]) -> None:
    """Raise ValueError unless these are detections and ground truth of the same images.

    `shapes` are the required keys: ``"boxes"``, ``"masks"``, or both.
    """
    for name, items in (("preds", preds), ("target", target)):
        if not isinstance(items, Sequence):
            raise ValueError(f"Expected argument `{name}` to be of type Sequence, but got {items}")
    if len(preds) != len(target):
        raise ValueError(
            "Expected argument `preds` and `target` to have the same length, "
            f"but got {len(preds)} and {len(target)}"
        )
    for name, items, keys in (
        ("preds", preds, (*shapes, "labels", "scores")),
        ("target", target, (*shapes, "labels")),
    ):
        for key in keys:
            if any(key not in item for item in items):
                raise ValueError(f"Expected all dicts in `{name}` to contain the `{key}` key")
        for key in keys:
            if not all(isinstance(item[key], Tensor) for item in items):
                raise ValueError(f"Expected all {key} in `{name}` to be of type Tensor")
    for shape in shapes:
        for i, item in enumerate(target):
            check_image(item, "targets", i, (shape, "labels"))
        for i, item in enumerate(preds):
            check_image(item, "predictions", i, (shape, "labels", "scores"))


def check_image(item: ImageObjects, where: str, number: int, keys: tuple[str, ...]) -> None:
    """Raise ValueError for lengths that differ, boxes without 4 values, or labels that are not integers."""
    if len({item[key].size(0) for key in keys}) > 1:
        rest = " and ".join(keys[1:])
        got = ", ".join(f"{item[key].size(0)} {key}" for key in keys[1:])
        raise ValueError(
            f"Input '{keys[0]}', {rest} of sample {number} in {where} have a different length"
            f" (expected {item[keys[0]].size(0)} {rest}, got {got})"
        )
    if keys[0] == "boxes" and item["boxes"].numel() != 4 * item["boxes"].size(0):
        raise ValueError(
            f"Invalid input box of sample {number} in {where} "
            f"(expected 4 values, got boxes of shape {tuple(item['boxes'].shape)})"
        )
    if item["labels"].is_floating_point() and len(item["labels"]):
        raise ValueError(
            f"Invalid input class of sample {number} in {where}"
            f" (expected value of type integer, got {item['labels'].dtype})"
        )
