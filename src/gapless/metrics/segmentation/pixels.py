"""Counts the pixels of two masks, per image and class."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.batch import CPU, Batch
from gapless.metrics.host import argmax

UNION, EITHER, SUPPORT = "union", "either", "support"
"""Kinds of counts per class.

`UNION`: pixels in both masks, and in at least one. `EITHER`: twice the pixels in both masks, and those of
prediction plus target. `SUPPORT`: pixels in both masks, in the target, and of prediction plus target.
"""
CACHED_IMAGES = 256
"""Batches of up to this many images use histogram offsets that are computed in advance."""
CLAMPED_DTYPES = (torch.int64, torch.int32)
"""Index dtypes that are clamped directly; others may not hold the bounds and become int32 first."""


class MaskFormat(NamedTuple):
    """The format of masks: a channel per class (``"one-hot"``), class indices (``"index"``), or one of each.

    With `single`, indices of one or two dimensions are a single image; with `whole`, all images are counted
    as one; without `background`, class 0 does not count.
    """

    classes: int
    background: bool
    format: str
    single: bool = False
    whole: bool = False

    @property
    def counted_classes(self) -> int:
        """The number of classes that count."""
        return self.classes if self.background or self.classes == 1 else self.classes - 1


class PixelOverlaps(NamedTuple):
    """Pixel counts of the overlaps of two masks."""

    pixels: Tensor
    """``[N, 2, C]``, or for `SUPPORT` ``[N, 3, C]``, of integers per image and class; `N` is 1 if all images
    are counted as one.
    """
    invalid: Tensor | None
    """How many indices were not a class; None if there were no indices."""


class HistogramInputs(NamedTuple):
    """Tensors on the device from which the cells of the histogram are computed."""

    places: Tensor
    """:func:`histogram_offsets` the masks."""
    low: Tensor
    high: Tensor


def count_overlaps(batch: Batch, masks: MaskFormat, kind: str, grid: HistogramInputs) -> PixelOverlaps:
    """Count the overlaps of the masks of `batch`, as `kind` says."""
    check_shapes(batch, masks)
    preds, target = (class_indices(mask, masks, batch) for mask in batch.args)
    if preds is not None and target is not None:
        check_same_shape(batch, preds, target)
        checked = any(is_index(mask, masks, batch) for mask in batch.args)
        result = count_by_index(preds, target, masks, kind, grid, checked)
    else:
        result = count_by_channel(batch, masks, kind)
    return (
        result if masks.counted_classes == masks.classes else result._replace(pixels=result.pixels[..., 1:])
    )


def check_shapes(batch: Batch, masks: MaskFormat) -> None:
    """Raise RuntimeError for masks whose dimensions do not fit a mixed format."""
    preds, target = batch.args
    if masks.format == "mixed" and abs(preds.dim() - target.dim()) != 1:
        raise RuntimeError(
            "Predictions and targets are expected to have the same shape, "
            f"got {preds.shape} and {target.shape}."
        )


def check_same_shape(batch: Batch, preds: Tensor, target: Tensor) -> None:
    """Raise RuntimeError unless `preds` and `target`, both in the same format, have the same shape."""
    if preds.shape != target.shape:
        raise RuntimeError(
            "Predictions and targets are expected to have the same shape, "
            f"but got {batch.args[0].shape} and {batch.args[1].shape}."
        )


def is_index(mask: Tensor, masks: MaskFormat, batch: Batch) -> bool:
    """Whether `mask` holds class indices."""
    dims = max(other_mask.dim() for other_mask in batch.args)
    return masks.format == "index" or (masks.format == "mixed" and mask.dim() < dims)


def class_indices(mask: Tensor, masks: MaskFormat, batch: Batch) -> Tensor | None:
    """Return the class of each pixel, ``(N, ...)``; None if pixels may have several classes or none."""
    if is_index(mask, masks, batch):
        mask = with_image_dim(mask) if masks.single and masks.format == "index" else mask
        if mask.dim() < 2:
            raise ValueError(
                f"Expected both `preds` and `target` to have at least 3 dimensions, but got {mask.dim() + 1}."
            )
        return mask
    return argmax(mask, 1) if mask.is_floating_point() and mask.dim() > 2 else None


def count_by_index(
    preds: Tensor, target: Tensor, masks: MaskFormat, kind: str, grid: HistogramInputs, checked: bool
) -> PixelOverlaps:
    """Count the overlaps of masks of class indices, as `kind` says.

    One histogram counts both masks, with a cell before and one after the classes for invalid indices. Pixels
    on which the masks agree are counted in the first of its groups; see :func:`histogram_offsets`.
    """
    classes, images = masks.classes, 1 if masks.whole else len(preds)
    width, groups = classes + 2, group_count(kind)
    sides, places = clamp_both(preds, target, classes, grid), grid.places
    same = sides[0] == sides[1]
    if images > places.shape[1]:
        steps = torch.arange(images, dtype=torch.int32, device=places.device) * (groups * width)
        places = places[:, :1] + steps
    sides.add_(places[:, :images].reshape(2, images, *[1] * (preds.dim() - 1)))
    (sides if kind == EITHER else sides[1]).add_(same, alpha=-width)
    table = histogram(sides, images * groups * width).view(images, groups, width)
    invalid = table[..., :: classes + 1].sum() if checked else None
    return PixelOverlaps((table if kind == UNION else table.cumsum(1))[..., 1 : classes + 1], invalid)


def group_count(kind: str) -> int:
    """Return the number of groups of classes in an image's histogram."""
    return 3 if kind == SUPPORT else 2


def histogram_offsets(masks: MaskFormat, kind: str) -> Tensor:
    """Return the histogram offsets of predictions and targets of the first images, ``[2, N]`` of int32.

    The groups of an image are, for `UNION`, the pixels in both masks and in at least one; for `EITHER`, the
    pixels of both masks where they agree, and where they differ; for `SUPPORT`, the pixels in both masks,
    those of the target alone, and those of the prediction.
    """
    width, groups = masks.classes + 2, group_count(kind)
    first = torch.arange(CACHED_IMAGES, dtype=torch.int32, device="cpu") * (groups * width)
    return torch.stack((first + 1 + (groups - 1) * width, first + 1 + width))


def clamp_both(preds: Tensor, target: Tensor, classes: int, grid: HistogramInputs) -> Tensor:
    """Return the classes of both masks, ``[2, N, ...]`` of int32, clamped to -1 and `classes` if invalid."""
    masks = [mask if mask.dtype in CLAMPED_DTYPES else mask.to(torch.int32) for mask in (preds, target)]
    if torch.compiler.is_compiling():
        return torch.stack([mask.clamp(-1, classes).to(torch.int32) for mask in masks])
    sides = torch.empty((2, *preds.shape), dtype=torch.int32, device=preds.device)
    for mask, out in zip(masks, sides, strict=True):
        if mask.device == CPU:  # here clamping into `out` makes a temporary, too, and is slower
            out.copy_(mask.clamp(-1, classes))
        else:
            torch.clamp(mask, grid.low, grid.high, out=out)
    return sides


def histogram(positions: Tensor, bins: int) -> Tensor:
    """Count how often each number below `bins` occurs in `positions`."""
    plain = not torch.compiler.is_compiling()
    if positions.device.type == "cpu" and plain:
        return torch.bincount(positions.flatten(), minlength=bins)
    if positions.device.type == "cuda" and plain and not torch.are_deterministic_algorithms_enabled():
        return torch.histc(positions, bins, 0, bins)
    flat = positions.flatten().to(torch.int64)
    counts = torch.zeros(bins, dtype=torch.int64, device=positions.device)
    return counts.scatter_add_(0, flat, torch.ones_like(flat))


def count_by_channel(batch: Batch, masks: MaskFormat, kind: str) -> PixelOverlaps:
    """Count the overlaps of masks with a channel per class, as `kind` says."""
    preds, target = (one_hot(mask, masks, batch) for mask in batch.args)
    check_same_shape(batch, preds, target)
    if preds.dim() < 3:
        raise ValueError(
            f"Expected both `preds` and `target` to have at least 3 dimensions, but got {preds.dim()}."
        )
    stacked = [preds & target, preds | target] if kind == UNION else [preds & target, target, preds]
    dims = (0, 2) if masks.whole else (2,)
    counts = torch.stack([mask.flatten(2).sum(dims) for mask in stacked], -2)
    counts = counts.unsqueeze(0) if masks.whole else counts
    if kind == UNION:
        pixels = counts
    elif kind == EITHER:
        pixels = torch.stack((2 * counts[:, 0], counts[:, 1:].sum(1)), 1)
    else:
        pixels = torch.cat((counts[:, :2], counts[:, 1:].sum(1, keepdim=True)), 1)
    return PixelOverlaps(pixels, count_invalid_indices(batch, masks))


def one_hot(mask: Tensor, masks: MaskFormat, batch: Batch) -> Tensor:
    """Return a mask as bools ``(N, C, ...)``, with a channel per class."""
    has_indices = is_index(mask, masks, batch)
    if not has_indices and not mask.is_floating_point():
        return mask if mask.dtype == torch.bool else mask != 0
    index = with_image_dim(mask) if masks.single and masks.format == "index" else mask
    index = index if has_indices else argmax(mask, 1)
    classes = torch.arange(masks.classes, device=mask.device).reshape(-1, *[1] * (index.dim() - 1))
    return index.unsqueeze(1) == classes


def with_image_dim(index: Tensor) -> Tensor:
    """Return class indices as ``(N, ...)``, adding dimensions to a single image of one or two."""
    return index.reshape(*[1] * (3 - index.dim()), *index.shape)


def count_invalid_indices(batch: Batch, masks: MaskFormat) -> Tensor | None:
    """Return how many indices are not a class; None if neither mask holds indices."""
    index_masks = [mask for mask in batch.args if is_index(mask, masks, batch)]
    if not index_masks:
        return None
    counts = [((mask < 0) | (mask >= masks.classes)).sum() for mask in index_masks]
    return counts[0] if len(counts) == 1 else counts[0] + counts[1]
