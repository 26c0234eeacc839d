"""Boxes that were found in images, and those that are there, kept in one table until they are matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import storable

Item = Mapping[str, Tensor]
IMAGE, DETECTION, TRUTH, CROWD = range(4)
"""What a row of the table is. The rows of an image follow that which begins it, so tables can be joined."""
AREAS = ((0.0, 1e10), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10))
"""Pixels of what counts: all, small, medium, large."""
FORMATS = ("xyxy", "xywh", "cxcywh")


class Objects(Rows):
    """A table of images: what was found in each, and what is there."""

    least: Tensor
    smallest: Tensor
    largest: Tensor
    recalls: Tensor

    def __init__(self, box_format: str, iou_thresholds: Sequence[float], recalls: Sequence[float]) -> None:
        self.box_format = box_format
        with torch.device("cpu"):
            self.constants = {
                "least": torch.tensor([min(one, 1 - 1e-10) for one in iou_thresholds], dtype=torch.float64),
                "smallest": torch.tensor([low for low, _ in AREAS], dtype=torch.float64),
                "largest": torch.tensor([high for _, high in AREAS], dtype=torch.float64),
                "recalls": torch.tensor(recalls, dtype=torch.float64),
            }
        columns = {
            "kind": ((), torch.uint8),
            "label": ((), torch.int64),
            "value": ((), torch.float64),  # the score of a detection, or the area of what is there
            "box": ((4,), torch.float64),
        }
        super().__init__((box_format, *iou_thresholds, None, *recalls), columns, checked=False)

    def count(self, batch: Batch) -> None:
        kind, label, value, box = batch.args[:4]
        self.add(kind, label, value, from_corner(box, self.box_format))

    def add(self, kind: Tensor, label: Tensor, value: Tensor, box: Tensor) -> None:
        """Add rows, with boxes of a corner, width and height."""
        wide = storable(torch.float64, self.device)
        self.append(kind=kind, label=label.to(torch.int64), value=value.to(wide), box=box.to(wide))

    def elsewhere(self, size: Tensor) -> Tensor:
        """``[N, A]``: what is too small or too large for each of the areas."""
        return (size.unsqueeze(1) < self.smallest) | (size.unsqueeze(1) > self.largest)

    @property
    def empty(self) -> bool:
        """Whether the host knows that there is no image."""
        return not len(self.read("kind"))


def from_corner(box: Tensor, box_format: str) -> Tensor:
    """``[N, 4]``: the corner at the top left, width and height."""
    if box_format == "xywh":
        return box
    a, b, c, d = box.unbind(-1)
    if box_format == "cxcywh":
        a, b, c, d = a - 0.5 * c, b - 0.5 * d, a + 0.5 * c, b + 0.5 * d
    return torch.stack((a, b, c - a, d - b), dim=-1)


def columns_of(preds: Sequence[Item], target: Sequence[Item], boxes: bool) -> list[Tensor]:
    """The rows of these images: kind, label, value, and where there are `boxes`, these.

    The number of kernels does not depend on how many images there are, up to some dozens.
    """
    if not len(target):
        nothing = torch.zeros(0, dtype=torch.uint8)
        return [nothing, nothing, nothing, nothing.reshape(0, 4)]
    device = target[0]["labels"].device
    marks = torch.arange(3, dtype=torch.uint8, device=device)
    nothing = marks[:1]
    columns: tuple[list[Tensor], ...] = ([], [], [], [])
    crowds: list[Tensor] = []
    for found, there in zip(preds, target, strict=True):
        detections, truths = (one["labels"].reshape(-1) for one in (found, there))
        n, m = len(detections), len(truths)
        area, crowd = there.get("area"), there.get("iscrowd")
        no_area = nothing.expand(m) if area is None else area.reshape(-1)
        columns[0].extend((nothing, marks[1:2].expand(n), marks[2:].expand(m)))
        columns[1].extend((nothing, detections, truths))
        columns[2].extend((nothing, found["scores"].reshape(-1), no_area))
        if boxes:
            both = (one["boxes"].reshape(-1, 4) for one in (found, there))
            columns[3].extend((nothing.expand(1, 4), *both))
        crowds.extend((nothing.expand(1 + n), nothing.expand(m) if crowd is None else crowd.reshape(-1)))
    rows = [torch.cat(pieces) if pieces else nothing for pieces in columns]
    if any("iscrowd" in one for one in target):
        rows[0] = rows[0] + (torch.cat(crowds) != 0)
    return rows


def check_items(preds: Any, target: Any, shapes: tuple[str, ...]) -> None:
    """Raises ValueError unless these are detections and truths of the same images, with `shapes` of each:
    ``"boxes"``, ``"masks"``, or both.
    """
    for name, given in (("preds", preds), ("target", target)):
        if not isinstance(given, Sequence):
            raise ValueError(f"Expected argument `{name}` to be of type Sequence, but got {given}")
    if len(preds) != len(target):
        raise ValueError(
            "Expected argument `preds` and `target` to have the same length, "
            f"but got {len(preds)} and {len(target)}"
        )
    for name, given, keys in (
        ("preds", preds, (*shapes, "labels", "scores")),
        ("target", target, (*shapes, "labels")),
    ):
        for key in keys:
            if any(key not in one for one in given):
                raise ValueError(f"Expected all dicts in `{name}` to contain the `{key}` key")
        for key in keys:
            if not all(isinstance(one[key], Tensor) for one in given):
                raise ValueError(f"Expected all {key} in `{name}` to be of type Tensor")
    for shape in shapes:
        for i, one in enumerate(target):
            check_lengths(one, "targets", i, (shape, "labels"))
        for i, one in enumerate(preds):
            check_lengths(one, "predictions", i, (shape, "labels", "scores"))


def check_lengths(item: Item, where: str, number: int, keys: tuple[str, ...]) -> None:
    """Raises ValueError for boxes that are no boxes, labels that are no integers, or too few of something."""
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
