"""Count the waits of backward formulas that read values.

Under a dispatch mode autograd takes another path, without these reads. So if the table of waits has a row for
an autograd node, a hook on each such node counts it.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from gapless.emulation.dispatch.functions import FunctionMode, Handler
from gapless.emulation.waits.predicates import PREDICATES, Call
from gapless.emulation.waits.table import WaitCondition, waits_table

Tensor = torch.Tensor


def handlers() -> dict[Any, Handler]:
    """Make handlers for the functions and methods that create an autograd node listed in the table."""
    by_function: dict[str, dict[str, tuple[WaitCondition, ...]]] = {}
    for scope, name in waits_table().index:
        if scope == "node":
            by_function.setdefault(_function_of(name), {})[name] = waits_table().for_node(name)
    by_callable: dict[Any, Handler] = {}
    for name, rows in by_function.items():
        for owner in (torch, Tensor):
            function = getattr(owner, name, None)
            if function is not None:
                by_callable[function] = _hooking_handler(rows)
    return by_callable


def _function_of(node: str) -> str:
    """The function that creates a node: ``CumprodBackward0`` gives ``cumprod``."""
    stem = re.sub(r"Backward\d*$", "", node)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", stem).lower()


def _hooking_handler(rows: dict[str, tuple[WaitCondition, ...]]) -> Handler:
    def handler(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        node: Any = out.grad_fn if isinstance(out, Tensor) else None
        for row in rows.get(node.name() if node is not None else "", ()):
            node.register_prehook(_counting_hook(mode, node, row))
        return out

    return handler


def _counting_hook(mode: FunctionMode, node: Any, row: WaitCondition) -> Any:
    def count(_: Any) -> None:
        times = int(PREDICATES[row.when](Call(node, (), {}, mode.on_device)))
        if times:
            mode.core.wait(row.name, row.mechanism, waits=row.waits * times, basis=row.basis)

    return count
