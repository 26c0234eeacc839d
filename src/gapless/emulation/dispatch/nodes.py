"""Backward formulas that read values: under a dispatch mode autograd takes another path and shows nothing
of it.

So where the table of waits has a row for an autograd node, the call that makes such a node hooks itself to
it.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from gapless.emulation.dispatch.functions import FunctionMode, Handler
from gapless.emulation.waits.predicates import PREDICATES, Call
from gapless.emulation.waits.table import Row, waits_table

Tensor = torch.Tensor


def handlers() -> dict[Any, Handler]:
    """Handlers for the functions and methods that make a node the table knows."""
    by_function: dict[str, dict[str, tuple[Row, ...]]] = {}
    for scope, name in waits_table().index:
        if scope == "node":
            by_function.setdefault(_function_of(name), {})[name] = waits_table().for_node(name)
    found: dict[Any, Handler] = {}
    for name, rows in by_function.items():
        for owner in (torch, Tensor):
            function = getattr(owner, name, None)
            if function is not None:
                found[function] = _hooked(rows)
    return found


def _function_of(node: str) -> str:
    """``CumprodBackward0`` is made by ``cumprod``."""
    stem = re.sub(r"Backward\d*$", "", node)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", stem).lower()


def _hooked(rows: dict[str, tuple[Row, ...]]) -> Handler:
    def handler(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        node: Any = out.grad_fn if isinstance(out, Tensor) else None
        for row in rows.get(node.name() if node is not None else "", ()):
            node.register_prehook(_counting(mode, node, row))
        return out

    return handler


def _counting(mode: FunctionMode, node: Any, row: Row) -> Any:
    def count(_: Any) -> None:
        times = int(PREDICATES[row.when](Call(node, (), {}, mode.on_device)))
        if times:
            mode.core.wait(row.name, row.mechanism, waits=row.waits * times, basis=row.basis)

    return count
