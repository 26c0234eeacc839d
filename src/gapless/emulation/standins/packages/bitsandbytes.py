"""bitsandbytes, which can be installed without a GPU: it runs here with its kernels for the CPU.

It loads its library for CUDA where there is a GPU, and nothing where that is missing, so that it must not see
one while it is imported. What its kernels for CUDA wait for is told here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from gapless.emulation.standins.known import LibraryWait
from gapless.emulation.standins.launch import without_emulation
from gapless.emulation.support.patches import Patches
from gapless.emulation.waits.call import Call

_NEVER = (
    "dequantize_4bit", "dequantize_blockwise", "gemm_4bit", "gemv_4bit", "int8_linear_matmul",
    "int8_mm_dequant", "int8_scaled_mm", "int8_vectorwise_dequant", "optimizer_update_32bit",
    "optimizer_update_8bit_blockwise", "quantize_4bit", "quantize_blockwise", "int8_mixed_scaled_mm",
)  # fmt: skip
_SOURCE = "bitsandbytes/backends/cuda/ops.py: int8_vectorwise_quant"


@contextmanager
def while_importing(patches: Patches) -> Iterator[None]:
    """No GPU is seen in here."""
    with patch.object(torch.cuda, "is_available", lambda: False), patch.object(torch.version, "cuda", None):
        yield


def _outliers(call: Call) -> int:
    """Whether there are outliers is read, and then in which columns."""
    threshold = call.argument("threshold", 0.0)
    if not threshold:
        return 0
    with without_emulation():
        return 1 + bool((call.subject.abs() >= threshold).any())


_QUANTIZES = (
    LibraryWait("read", "reads whether values exceed the threshold, then where", _SOURCE, _outliers),
)
OPERATORS = {
    **{f"bitsandbytes::{name}": () for name in _NEVER},
    "bitsandbytes::int8_vectorwise_quant": _QUANTIZES,
    "bitsandbytes::int8_double_quant": _QUANTIZES,
}
