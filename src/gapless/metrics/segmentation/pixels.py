"""Pixels of two masks, counted per image and class."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.batch import CPU, Batch
from gapless.metrics.host import argmax

UNION, EITHER, SUPPORT = "union", "either", "support"
"""What is to be known of a class: its pixels in both masks, and in one of them; twice those in both, and in
either, counted twice where they are in both; or those in both, in the target, and in either as before.
"""
AT_HAND = 256
"""Images of a batch for which it is known beforehand where their classes are counted."""
SIGNED = (torch.int64, torch.int32)


class Masks(NamedTuple):
    """How masks are given: one channel per class (``"one-hot"``), class indices (``"index"``), or each.

    With `single` indices of one or two dimensions are those of one image; with `whole` all images are one.
    """

    classes: int
    background: bool
    format: str
    single: bool = False
    whole: bool = False

    @property
    def counted(self) -> int:
        """Classes that count."""
        return self.classes if self.background or self.classes == 1 else self.classes - 1


class Overlaps(NamedTuple):
    """How masks lie over each other."""

    pixels: Tensor
    """``[N, 2, C]`` or, of `SUPPORT`, ``[N, 3, C]`` of integers, per image and class; `N` is 1 where all
    images count as one.
    """
    strange: Tensor | None
    """How many indices were no class; None where nothing was given as indices."""


class Grid(NamedTuple):
    """What places in the histogram are made with, on the device."""

    places: Tensor
    """:func:`places_of` the masks."""
    low: Tensor
    high: Tensor


def overlaps(batch: Batch, masks: Masks, what: str, grid: Grid) -> Overlaps:
    """What `what` says of the masks of `batch`."""
    check_shapes(batch, masks)
    preds, target = (indices(one, masks, batch) for one in batch.args)
    if preds is not None and target is not None:
        same_shape(batch, preds, target)
        checked = any(is_index(one, masks, batch) for one in batch.args)
        found = by_index(preds, target, masks, what, grid, checked)
    else:
        found = by_channel(batch, masks, what)
    return found if masks.counted == masks.classes else found._replace(pixels=found.pixels[..., 1:])


def check_shapes(batch: Batch, masks: Masks) -> None:
    """Raises RuntimeError or ValueError for masks that do not fit each other, or the format."""
    preds, target = batch.args
    if masks.format == "mixed" and abs(preds.dim() - target.dim()) != 1:
        raise RuntimeError(
            "Predictions and targets are expected to have the same shape, "
            f"got {preds.shape} and {target.shape}."
        )


def same_shape(batch: Batch, preds: Tensor, target: Tensor) -> None:
    """Raises RuntimeError unless both masks, in their common form, have the same shape."""
    if preds.shape != target.shape:
        raise RuntimeError(
            "Predictions and targets are expected to have the same shape, "
            f"but got {batch.args[0].shape} and {batch.args[1].shape}."
        )


def is_index(mask: Tensor, masks: Masks, batch: Batch) -> bool:
    """Whether `mask` holds class indices."""
    dims = max(one.dim() for one in batch.args)
    return masks.format == "index" or (masks.format == "mixed" and mask.dim() < dims)


def indices(mask: Tensor, masks: Masks, batch: Batch) -> Tensor | None:
    """The class of each pixel, ``(N, ...)``; None where a pixel may have several, or none."""
    if is_index(mask, masks, batch):
        mask = one_image(mask) if masks.single and masks.format == "index" else mask
        if mask.dim() < 2:
            raise ValueError(
                f"Expected both `preds` and `target` to have at least 3 dimensions, but got {mask.dim() + 1}."
            )
        return mask
    return argmax(mask, 1) if mask.is_floating_point() and mask.dim() > 2 else None


def by_index(preds: Tensor, target: Tensor, masks: Masks, what: str, grid: Grid, checked: bool) -> Overlaps:
    """The same from the class of each pixel.

    Both masks are counted by one histogram, with a place before and one behind the classes for what is none:
    pixels of which they say the same are in its first group, of which :func:`places_of` tells.
    """
    classes, images = masks.classes, 1 if masks.whole else len(preds)
    width, groups = classes + 2, group_count(what)
    sides, places = both_sides(preds, target, classes, grid), grid.places
    same = sides[0] == sides[1]
    if images > places.shape[1]:
        steps = torch.arange(images, dtype=torch.int32, device=places.device) * (groups * width)
        places = places[:, :1] + steps
    sides.add_(places[:, :images].reshape(2, images, *[1] * (preds.dim() - 1)))
    (sides if what == EITHER else sides[1]).add_(same, alpha=-width)
    table = counted(sides, images * groups * width).view(images, groups, width)
    strange = table[..., :: classes + 1].sum() if checked else None
    return Overlaps((table if what == UNION else table.cumsum(1))[..., 1 : classes + 1], strange)


def group_count(what: str) -> int:
    """Groups of classes of an image's histogram."""
    return 3 if what == SUPPORT else 2


def places_of(masks: Masks, what: str) -> Tensor:
    """``[2, N]`` of int32: where predictions and targets of the first `N` images begin in the histogram.

    The groups of an image are, of `UNION`, the pixels in both masks and those in one of them; of `EITHER`
    both masks' pixels where they say the same, and where they do not; of `SUPPORT` the pixels in both masks,
    those of the target elsewhere, and those predicted.
    """
    width, groups = masks.classes + 2, group_count(what)
    first = torch.arange(AT_HAND, dtype=torch.int32, device="cpu") * (groups * width)
    return torch.stack((first + 1 + (groups - 1) * width, first + 1 + width))


def both_sides(preds: Tensor, target: Tensor, classes: int, grid: Grid) -> Tensor:
    """``[2, N, ...]`` of int32: the classes of both, what is below or above them beside first and last."""
    given = [one if one.dtype in SIGNED else one.to(torch.int32) for one in (preds, target)]
    if torch.compiler.is_compiling():
        return torch.stack([one.clamp(-1, classes).to(torch.int32) for one in given])
    sides = torch.empty((2, *preds.shape), dtype=torch.int32, device=preds.device)
    for one, into in zip(given, sides, strict=True):
        if one.device == CPU:  # where the other way makes a temporary, too, and takes longer
            into.copy_(one.clamp(-1, classes))
        else:
            torch.clamp(one, grid.low, grid.high, out=into)
    return sides


def counted(places: Tensor, bins: int) -> Tensor:
    """How often each of the numbers below `bins` occurs in `places`; on a CUDA device block by block."""
    plain = not torch.compiler.is_compiling()
    if places.device.type == "cpu" and plain:
        return torch.bincount(places.flatten(), minlength=bins)
    if places.device.type == "cuda" and plain and not torch.are_deterministic_algorithms_enabled():
        return torch.histc(places, bins, 0, bins)
    flat = places.flatten().to(torch.int64)
    found = torch.zeros(bins, dtype=torch.int64, device=places.device)
    return found.scatter_add_(0, flat, torch.ones_like(flat))


def by_channel(batch: Batch, masks: Masks, what: str) -> Overlaps:
    """The same from a channel per class."""
    preds, target = (channels(one, masks, batch) for one in batch.args)
    same_shape(batch, preds, target)
    if preds.dim() < 3:
        raise ValueError(
            f"Expected both `preds` and `target` to have at least 3 dimensions, but got {preds.dim()}."
        )
    several = [preds & target, preds | target] if what == UNION else [preds & target, target, preds]
    dims = (0, 2) if masks.whole else (2,)
    counts = torch.stack([one.flatten(2).sum(dims) for one in several], -2)
    counts = counts.unsqueeze(0) if masks.whole else counts
    if what == UNION:
        pixels = counts
    elif what == EITHER:
        pixels = torch.stack((2 * counts[:, 0], counts[:, 1:].sum(1)), 1)
    else:
        pixels = torch.cat((counts[:, :2], counts[:, 1:].sum(1, keepdim=True)), 1)
    return Overlaps(pixels, strange_pixels(batch, masks))


def channels(mask: Tensor, masks: Masks, batch: Batch) -> Tensor:
    """``(N, C, ...)`` of bool."""
    given = is_index(mask, masks, batch)
    if not given and not mask.is_floating_point():
        return mask if mask.dtype == torch.bool else mask != 0
    index = one_image(mask) if masks.single and masks.format == "index" else mask
    index = index if given else argmax(mask, 1)
    classes = torch.arange(masks.classes, device=mask.device).reshape(-1, *[1] * (index.dim() - 1))
    return index.unsqueeze(1) == classes


def one_image(index: Tensor) -> Tensor:
    """Class indices ``(N, ...)``, of which those of one or two dimensions are one image, with `N` of 1."""
    return index.reshape(*[1] * (3 - index.dim()), *index.shape)


def strange_pixels(batch: Batch, masks: Masks) -> Tensor | None:
    """How many indices are no class; None where there are no indices."""
    given = [one for one in batch.args if is_index(one, masks, batch)]
    if not given:
        return None
    found = [((one < 0) | (one >= masks.classes)).sum() for one in given]
    return found[0] if len(found) == 1 else found[0] + found[1]
