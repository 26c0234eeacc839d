"""Backends of ``torch.compile``: what they are called, and which of them make CUDA graphs."""

from __future__ import annotations

import sys
from typing import Any

import torch

from gapless.torch_internals import path


def named(backend: Any) -> str:
    """What `backend` is called in ``torch.compile(backend=…)``; empty where it is somebody's own."""
    if isinstance(backend, str):
        return backend
    if isinstance(getattr(backend, "config", None), dict):
        return "inductor"
    name = getattr(backend, "compiler_name", "")
    return str(name) if name in torch.compiler.list_backends(exclude_tags=()) else ""


def uses_cudagraphs(backend: Any) -> bool:
    """Whether a backend captures what it compiles: ``mode="reduce-overhead"``, the option, inductor's own
    setting, or by its name."""
    name = named(backend)
    return name == "cudagraphs" or (name == "inductor" and bool(setting(backend, "triton.cudagraphs")))


def setting(backend: Any, name: str) -> Any:
    """One of inductor's settings, as `backend` has it; None where inductor's are not loaded yet."""
    own = getattr(backend, "config", {})
    if name in own:
        return own[name]
    found: Any = sys.modules.get(f"{path('inductor')}.config")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
