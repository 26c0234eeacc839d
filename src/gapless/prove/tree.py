"""Walk nested values: their leaves by path, and copies with other leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from gapless.trees import rebuild

Visit = Callable[[str, Any], Any]

_MAX_DEPTH = 32
"""Nesting at which a value counts as a leaf: values may contain themselves."""


def leaves(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of `value`, each with its path: ``output["loss"]``, ``output[0].scores``."""
    held = None if depth > _MAX_DEPTH else parts(value)
    if held is None:
        yield path, value
        return
    for step, part in held:
        yield from leaves(part, path + step, depth + 1)


def tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors among the leaves of `value`."""
    for where, leaf in leaves(value, path):
        if isinstance(leaf, torch.Tensor):
            yield where, leaf


def containers(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the containers of `value`, each with its path and a description of its kind and keys."""
    held = None if depth > _MAX_DEPTH else parts(value)
    if held is None:
        return
    yield path, f"{_kind(value)} of {', '.join(step for step, _ in held) or 'nothing'}"
    for step, part in held:
        yield from containers(part, path + step, depth + 1)


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "mapping"
    return "sequence" if isinstance(value, (list, tuple)) else type(value).__name__


def parts(value: Any) -> list[tuple[str, Any]] | None:
    """Return the parts of `value`, each with its step in a path; None for a leaf."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [(f"[{position}]", part) for position, part in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def map_tensors(value: Any, path: str, visit: Visit) -> Any:
    """Return a copy of `value` with ``visit(path, tensor)`` in place of each tensor; parts without stay the
    same."""
    if isinstance(value, torch.Tensor):
        return visit(path, value)
    held = parts(value)
    if not held or not any(isinstance(leaf, torch.Tensor) for _, leaf in leaves(value, path)):
        return value
    mapped_parts = [map_tensors(part, path + step, visit) for step, part in held]
    return rebuild(value, mapped_parts)
