"""Backends of ``torch.compile``: their names, and which of them capture CUDA graphs."""

from __future__ import annotations

import sys
from typing import Any

import torch

from gapless.torch_internals import path


def backend_name(backend: Any) -> str:
    """The name of `backend` in ``torch.compile(backend=…)``; "" for a user's own."""
    if isinstance(backend, str):
        return backend
    if isinstance(getattr(backend, "config", None), dict):
        return "inductor"
    name = getattr(backend, "compiler_name", "")
    return str(name) if name in torch.compiler.list_backends(exclude_tags=()) else ""


def uses_cudagraphs(backend: Any) -> bool:
    """Whether a backend captures CUDA graphs, by its name, ``mode="reduce-overhead"``, an option or
    inductor's setting."""
    name = backend_name(backend)
    return name == "cudagraphs" or (
        name == "inductor" and bool(inductor_setting(backend, "triton.cudagraphs"))
    )


def inductor_setting(backend: Any, name: str) -> Any:
    """The value of inductor's setting `name` for `backend`; None if inductor is not loaded yet."""
    own = getattr(backend, "config", {})
    if name in own:
        return own[name]
    value: Any = sys.modules.get(f"{path('inductor')}.config")
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
