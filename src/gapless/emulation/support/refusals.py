"""Errors for operations that need a real CUDA device: the user's line and an alternative."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch

from gapless.emulation.support import stacks
from gapless.errors import NotEmulated


def refuse(operation: str, alternative: str) -> NotEmulated:
    """Return the error to raise: it names the operation, the user's line, and an alternative."""
    return NotEmulated(f"{operation} needs a real CUDA device{requested_at()}. {alternative}")


def requested_at() -> str:
    """Return ``" (requested at train.py:12)"`` with the innermost frame of the user's code; "" if there is
    none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not stacks.library_of(file) and not file.startswith("<frozen"):
            return f" (requested at {file}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


def on_device(values: Iterable[Any]) -> bool:
    """Whether a tensor on the device is among `values`, including inside containers and modules."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                return True
        elif isinstance(value, torch.nn.Module):
            if on_device(value.parameters()) or on_device(value.buffers()):
                return True
        elif (isinstance(value, dict) and on_device(value.values())) or (
            isinstance(value, (list, tuple)) and on_device(value)
        ):
            return True
    return False
