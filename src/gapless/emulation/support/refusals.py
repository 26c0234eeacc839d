"""Saying no clearly: what cannot exist without a CUDA device, at which line, and what to do instead."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch

from gapless.emulation.support import stacks
from gapless.errors import NotEmulated


def refuse(what: str, instead: str) -> NotEmulated:
    """The error to raise: names the thing, the user's line that asked for it, and what to do."""
    return NotEmulated(f"{what} needs a real CUDA device{asked_at()}. {instead}")


def asked_at() -> str:
    """``" (asked for at train.py:12)"``: the innermost frame of the user's own code, or nothing."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not stacks.library_of(file) and not file.startswith("<frozen"):
            return f" (requested at {file}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


def on_device(values: Iterable[Any]) -> bool:
    """Whether a tensor on the device is among `values`: containers and modules are looked into."""
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
