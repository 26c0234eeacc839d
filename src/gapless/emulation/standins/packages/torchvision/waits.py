"""The waits of torchvision's CUDA operators."""

from __future__ import annotations

import re
import sys

from gapless.emulation.standins.known import LibraryWait
from gapless.emulation.waits.call import Call

_NEVER = (
    "roi_align", "_roi_align_backward", "roi_pool", "_roi_pool_backward", "ps_roi_align",
    "_ps_roi_align_backward", "ps_roi_pool", "_ps_roi_pool_backward", "deform_conv2d",
    "_deform_conv2d_backward",
)  # fmt: skip
_SOURCE = "torchvision/csrc/ops/cuda/nms_kernel.cu: nms_kernel"


def _chosen_on_device(call: Call) -> bool:
    """Boxes are chosen on the device, and their number is read: since version 0.21."""
    return _boxes(call) and _torchvision_version() >= (0, 21)


def _chosen_on_host(call: Call) -> bool:
    """Boxes are chosen on the host, which gets a mask and gives numbers back."""
    return _boxes(call) and _torchvision_version() < (0, 21)


def _boxes(call: Call) -> bool:
    return bool(call.subject.numel())


def _torchvision_version() -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", str(getattr(sys.modules.get("torchvision"), "__version__", "")))
    return (int(match[1]), int(match[2])) if match else (0, 21)


OPERATORS = {
    **{f"torchvision::{name}": () for name in _NEVER},
    "torchvision::nms": (
        LibraryWait("size", "a mask selects the boxes that are kept", _SOURCE, _chosen_on_device),
        LibraryWait("d2h", "the mask of overlaps is copied to the CPU", _SOURCE, _chosen_on_host),
        LibraryWait(
            "h2d", "the numbers of the boxes that are kept are copied back", _SOURCE, _chosen_on_host
        ),
    ),
}
