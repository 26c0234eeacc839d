"""The exceptions of CUDA's error checks."""

from __future__ import annotations

import torch


def accelerator_error(message: str, code: int) -> RuntimeError:
    """Return the exception CUDA's error checks raise: ``torch.AcceleratorError`` where torch has it."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    error: RuntimeError = kind(message)
    error.error_code = code  # type: ignore[attr-defined]
    return error
