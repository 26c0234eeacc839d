"""How well the segments of images, of things and of stuffs, were found and told apart."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.checks import warn
from gapless.metrics.detection.segments import Categories, Segments
from gapless.metrics.divide import divide
from gapless.metrics.metric import Metric


def categories_of(things: Collection[int], stuffs: Collection[int]) -> Categories:
    """The categories in order; duplicates are warned of.

    Raises:
        TypeError: one is no integer.
        ValueError: there are none, or one is both a thing and a stuff.
    """
    for name, given in (("things", things), ("stuffs", stuffs)):
        if len(set(given)) < len(given):
            warn(f"The provided `{name}` categories contained duplicates, which have been removed.")
        if not all(isinstance(one, int) for one in given):
            raise TypeError(f"Expected argument `{name}` to contain `int` categories, but got {given}")
    if set(things) & set(stuffs):
        raise ValueError(
            f"Expected arguments `things` and `stuffs` to have distinct keys, but got {things} and {stuffs}"
        )
    if not (things or stuffs):
        raise ValueError("At least one of `things` and `stuffs` must be non-empty.")
    return Categories(tuple(sorted(set(things))), tuple(sorted(set(stuffs))))


def check_points(preds: Any, target: Any) -> None:
    """Raises TypeError or ValueError unless both are ``(B, *spatial, 2)``."""
    for name, given in (("preds", preds), ("target", target)):
        if not isinstance(given, Tensor):
            raise TypeError(f"Expected argument `{name}` to be of type `torch.Tensor`, but got {type(given)}")
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


class Panoptic(Metric, abstract=True):
    """The quality of segments. The host waits nowhere: nothing has the size of the number of segments.

    Args:
        things: the categories of what can be counted.
        stuffs: those of what cannot.
        allow_unknown_preds_category: whether predictions of another category are void; else they are told.
    """

    is_differentiable = False
    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    modified = False
    segments: Segments

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
        self.use("segments", Segments(categories, allow_unknown_preds_category, self.modified))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add images, or clouds of points: ``(B, *spatial, 2)``, of each point its category and its instance.

        Points whose target is of no known category do not count, nor does the instance of a stuff. Segments
        are matched within each image.

        Raises:
            ValueError: shapes do not fit; or, on the CPU, predictions have a category that is not known, and
                must not.
        """
        check_points(preds, target)
        self.observe(preds, target)

    def qualities(self) -> tuple[Tensor, Tensor]:
        """``[C, 3]`` of float64: the panoptic, segmentation and recognition quality per category; and which
        of them occurred.
        """
        iou = self.segments.state["iou"]
        hits, wrong, missed = self.segments.state["counts"].to(iou.dtype)
        under = hits + 0.5 * wrong + 0.5 * missed
        segmentation, recognition = divide(iou, hits), divide(hits, under)
        found = torch.stack((segmentation * recognition, segmentation, recognition), dim=-1)
        return found, under > 0

    def mean(self) -> Tensor:
        """``[3]``: the means over the categories that occurred."""
        each, there = self.qualities()
        return (each * there.unsqueeze(1)).sum(0) / there.sum()


class PanopticQuality(Panoptic):
    """Panoptic quality: the IoU of matched segments, in shares of all segments.

    Args:
        return_sq_and_rq: whether segmentation and recognition quality are given, too.
        return_per_class: whether there is a value per category, those of things first, each in order.
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
            each = self.qualities()[0]
            return each if self.return_sq_and_rq else each[:, 0].unsqueeze(0)
        mean = self.mean()
        return mean if self.return_sq_and_rq else mean[0]


class ModifiedPanopticQuality(Panoptic):
    """Panoptic quality where segments of stuffs need not match: their IoUs count in shares of the target's
    segments.
    """

    modified = True

    def value(self) -> Tensor:
        return self.mean()[0]
