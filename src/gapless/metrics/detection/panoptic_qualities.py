"""Panoptic quality: how well the segments of things and stuffs were detected and distinguished."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.checks import warn
from gapless.metrics.detection.segments import Categories, SegmentCounts
from gapless.metrics.divide import divide
from gapless.metrics.metric import Metric


def categories_of(things: Collection[int], stuffs: Collection[int]) -> Categories:
    """Return the categories in order; warn of duplicates.

    Raises:
        TypeError: a category is not an integer.
        ValueError: there is no category, or one is both a thing and a stuff.
    """
    for name, numbers in (("things", things), ("stuffs", stuffs)):
        if len(set(numbers)) < len(numbers):
            warn(f"The provided `{name}` categories contained duplicates, which have been removed.")
        if not all(isinstance(number, int) for number in numbers):
            raise TypeError(f"Expected argument `{name}` to contain `int` categories, but got {numbers}")
    if set(things) & set(stuffs):
        raise ValueError(
            f"Expected arguments `things` and `stuffs` to have distinct keys, but got {things} and {stuffs}"
        )
    if not (things or stuffs):
        raise ValueError("At least one of `things` and `stuffs` must be non-empty.")
    return Categories(tuple(sorted(set(things))), tuple(sorted(set(stuffs))))


def check_points(preds: Any, target: Any) -> None:
    """Raise TypeError or ValueError unless both are ``(B, *spatial, 2)``."""
    for name, value in (("preds", preds), ("target", target)):
        if not isinstance(value, Tensor):
            raise TypeError(f"Expected argument `{name}` to be of type `torch.Tensor`, but got {type(value)}")
    if preds.shape != target.shape:
        raise ValueError(
            "Expected argument `preds` and `target` to have the same shape, "
            f"but got {preds.shape} and {target.shape}"
        )
    if preds.dim() < 3:
        raise ValueError(
            "Expected argument `preds` to have at least one spatial dimension (B, *spatial_dims, 2), "
            f"got {preds.shape}"
        )
    if preds.shape[-1] != 2:
        raise ValueError(
            "Expected argument `preds` to have exactly 2 channels in the last dimension (category, instance),"
            f" got {preds.shape} instead"
        )


class PanopticMetric(Metric, abstract=True):
    """The quality of segments. The host never waits: no shape depends on the number of segments.

    Args:
        things: the categories of countable objects.
        stuffs: the categories of uncountable regions.
        allow_unknown_preds_category: whether predictions of other categories are void; else they are
        reported.
    """

    is_differentiable = False
    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    modified = False
    segments: SegmentCounts

    def __init__(
        self,
        things: Collection[int],
        stuffs: Collection[int],
        allow_unknown_preds_category: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        categories = categories_of(things, stuffs)
        self.things, self.stuffs = set(categories.things), set(categories.stuffs)
        self.allow_unknown_preds_category = allow_unknown_preds_category
        self.use("segments", SegmentCounts(categories, allow_unknown_preds_category, self.modified))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add images or point clouds, ``(B, *spatial, 2)``: the category and the instance of each point.

        Points whose target category is unknown do not count; the instance of a stuff is ignored. Segments are
        matched within each image.

        Raises:
            ValueError: shapes do not fit; or, on the CPU, predictions have an unknown category that is not
                allowed.
        """
        check_points(preds, target)
        self.observe(preds, target)

    def qualities(self) -> tuple[Tensor, Tensor]:
        """Return panoptic, segmentation and recognition quality per category, and which categories occurred.

        The qualities are ``[C, 3]`` of float64.
        """
        iou = self.segments.state["iou"]
        hits, wrong, missed = self.segments.state["counts"].to(iou.dtype)
        under = hits + 0.5 * wrong + 0.5 * missed
        segmentation, recognition = divide(iou, hits), divide(hits, under)
        values = torch.stack((segmentation * recognition, segmentation, recognition), dim=-1)
        return values, under > 0

    def mean(self) -> Tensor:
        """Return the three qualities, ``[3]``, as means over the categories that occurred."""
        values, occurs = self.qualities()
        return (values * occurs.unsqueeze(1)).sum(0) / occurs.sum()


class PanopticQuality(PanopticMetric):
    """Panoptic quality: the summed IoU of matched segments, divided by the number of segments.

    Args:
        return_sq_and_rq: whether to return segmentation and recognition quality, too.
        return_per_class: whether to return a value per category, things first, each in order.
    """

    def __init__(
        self,
        things: Collection[int],
        stuffs: Collection[int],
        allow_unknown_preds_category: bool = False,
        return_sq_and_rq: bool = False,
        return_per_class: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(things, stuffs, allow_unknown_preds_category, **kwargs)
        self.return_sq_and_rq = return_sq_and_rq
        self.return_per_class = return_per_class

    def value(self) -> Tensor:
        if self.return_per_class:
            values = self.qualities()[0]
            return values if self.return_sq_and_rq else values[:, 0].unsqueeze(0)
        mean = self.mean()
        return mean if self.return_sq_and_rq else mean[0]


class ModifiedPanopticQuality(PanopticMetric):
    """Panoptic quality in which segments of stuffs need not match: their IoUs are summed and divided by the
    number of target segments.
    """

    modified = True

    def value(self) -> Tensor:
        return self.mean()[0]
