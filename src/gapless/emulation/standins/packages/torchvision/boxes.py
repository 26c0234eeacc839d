"""torchvision's `nms` and `roi_align`, for a process that could not load them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapless.emulation.standins.launch import LaunchState, launch

_POOLED = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_POOLED}) -> (Tensor, Tensor)",
    f"ps_roi_align({_POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    f"ps_roi_pool({_POOLED}) -> (Tensor, Tensor)",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
)
_COMPUTED = (
    "torchvision's compiled operators cannot be loaded with this torch: Gapless computed nms and roi_align "
    "in plain PyTorch, and its other operators raise an error"
)
_library: Any = None


def defined() -> bool:
    """Whether the operators of this process are those of this module."""
    return _library is not None


def define() -> None:
    """Define torchvision's operators in this process, for good; a second time it does nothing."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        _library.define(schema)
    _library.impl("nms", nms, "CPU")
    _library.impl("roi_align", roi_align, "CPU")
    _library.impl("roi_align", roi_align, "AutogradCPU")


def _say_so() -> None:
    if LaunchState.core is not None:
        LaunchState.core.note(_COMPUTED)


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of boxes ``[x1, y1, x2, y2]`` that overlap no better one beyond the threshold."""
    _say_so()
    order = scores.argsort(descending=True, stable=True)
    boxes = dets[order].float()
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    kept = torch.ones(len(order), dtype=torch.bool)
    for at in range(len(order)):
        if kept[at]:
            rest = boxes[at + 1 :]
            low, high = torch.maximum(boxes[at, :2], rest[:, :2]), torch.minimum(boxes[at, 2:], rest[:, 2:])
            shared = (high - low).clamp(min=0).prod(1)
            overlap = shared / (areas[at] + areas[at + 1 :] - shared)
            kept[at + 1 :] &= ~(overlap > iou_threshold)
    return order[kept]


class _Pooling(NamedTuple):
    """How regions are sampled: bins, samples in each (0: one per pixel), and a half-pixel offset."""

    scale: float
    bins: tuple[int, int]
    samples: int
    aligned: bool

    def weights(self, region: list[float], size: Sequence[int]) -> list[Tensor]:
        """Shares ``[bins, pixels]`` of rows and of columns: bilinear weights come apart into these."""
        shift = 0.5 if self.aligned else 0.0
        left, top, right, bottom = (edge * self.scale - shift for edge in region)
        return [
            self._along(begin, end - begin, bins, pixels)
            for begin, end, bins, pixels in zip((top, left), (bottom, right), self.bins, size, strict=True)
        ]

    def _along(self, begin: float, length: float, bins: int, pixels: int) -> Tensor:
        length = length if self.aligned else max(length, 1.0)
        step = length / bins
        samples = self.samples if self.samples > 0 else -int(-length // bins)
        samples = max(samples, 0)
        inside = (torch.arange(samples) + 0.5) * step / max(samples, 1)
        at = (begin + torch.arange(bins)[:, None] * step + inside).flatten()
        used = ((at >= -1) & (at <= pixels)).float() / max(samples, 1)
        at = at.clamp(0, pixels - 1)
        low = at.floor()
        shares = torch.zeros(len(at), pixels)
        rows = torch.arange(len(at))
        shares[rows, low.long()] += (1 - (at - low)) * used
        shares[rows, (low.long() + 1).clamp(max=pixels - 1)] += (at - low) * used
        return shares.unflatten(0, (bins, samples)).sum(1) if samples else torch.zeros(bins, pixels)


def _windows(shares: list[Tensor]) -> list[slice]:
    """Return the slices of rows and columns with a nonzero share."""
    windows = []
    for share in shares:
        used = share.any(0).nonzero().flatten().tolist()
        windows.append(slice(used[0], used[-1] + 1) if used else slice(0, 0))
    return windows


def _pool(pooling: _Pooling, source: Tensor, regions: Tensor) -> Tensor:
    out = torch.zeros(len(regions), source.shape[1], *pooling.bins)
    for at, (image, *region) in enumerate(regions.tolist()):
        rows, columns = pooling.weights(region, source.shape[2:])
        y, x = _windows([rows, columns])
        out[at] = rows[:, y] @ source[int(image), :, y, x].float() @ columns[:, x].T
    return out.to(source.dtype)


def _spread(pooling: _Pooling, gradient: Tensor, regions: Tensor, shape: Sequence[int]) -> Tensor:
    whole = torch.zeros(shape)
    for at, (image, *region) in enumerate(regions.tolist()):
        rows, columns = pooling.weights(region, shape[2:])
        y, x = _windows([rows, columns])
        whole[int(image), :, y, x] += rows[:, y].T @ gradient[at].float() @ columns[:, x]
    return whole.to(gradient.dtype)


class _RoiAlign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, regions: Tensor, pooling: _Pooling) -> Tensor:  # type: ignore[override]
        ctx.pooling, ctx.shape = pooling, source.shape
        ctx.save_for_backward(regions)

        def body(source: Tensor, regions: Tensor) -> Tensor:
            return _pool(pooling, source, regions)

        def shape_result(source: Tensor, regions: Tensor) -> Tensor:
            return source.new_empty(len(regions), source.shape[1], *pooling.bins)

        name = "torchvision::roi_align"
        out: Tensor = launch(name, body, source, regions, anywhere=True, shaped=shape_result)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        def body(gradient: Tensor, regions: Tensor) -> Tensor:
            return _spread(ctx.pooling, gradient, regions, ctx.shape)

        def shape_result(gradient: Tensor, regions: Tensor) -> Tensor:
            return gradient.new_empty(ctx.shape)

        (regions,) = ctx.saved_tensors
        name = "torchvision::_roi_align_backward"
        return launch(name, body, gradient, regions, anywhere=True, shaped=shape_result), None, None


def roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Regions ``[image, x1, y1, x2, y2]`` of ``[images, channels, height, width]``, averaged in bins."""
    _say_so()
    pooling = _Pooling(spatial_scale, (pooled_height, pooled_width), sampling_ratio, aligned)
    return _RoiAlign.apply(input, rois, pooling)  # type: ignore[no-any-return]
