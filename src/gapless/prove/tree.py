"""Nested values: their leaves by path, and copies with other leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from gapless.trees import rebuilt

Visit = Callable[[str, Any], Any]

_DEEPEST = 32


def leaves(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The leaves of `value`, each with its path: ``output["loss"]``, ``output[0].scores``."""
    held = None if depth > _DEEPEST else parts(value)
    if held is None:
        yield path, value
        return
    for step, part in held:
        yield from leaves(part, path + step, depth + 1)


def tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among the leaves of `value`."""
    for where, leaf in leaves(value, path):
        if isinstance(leaf, torch.Tensor):
            yield where, leaf


def shape(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """The containers of `value`, each with its path and what it is and holds."""
    held = None if depth > _DEEPEST else parts(value)
    if held is None:
        return
    yield path, f"{_kind(value)} of {', '.join(step for step, _ in held) or 'nothing'}"
    for step, part in held:
        yield from shape(part, path + step, depth + 1)


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "mapping"
    return "sequence" if isinstance(value, (list, tuple)) else type(value).__name__


def parts(value: Any) -> list[tuple[str, Any]] | None:
    """What `value` holds, with how to get there; None where it is a leaf."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [(f"[{position}]", part) for position, part in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{one.name}", getattr(value, one.name)) for one in dataclasses.fields(value)]
    return None


def mapped(value: Any, path: str, visit: Visit) -> Any:
    """A copy of `value` with ``visit(path, tensor)`` in place of each tensor; what has none stays itself."""
    if isinstance(value, torch.Tensor):
        return visit(path, value)
    held = parts(value)
    if not held or not any(isinstance(leaf, torch.Tensor) for _, leaf in leaves(value, path)):
        return value
    made = [mapped(part, path + step, visit) for step, part in held]
    return rebuilt(value, made)
