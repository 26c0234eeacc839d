"""``x[[0, 2]]``: a list in an index becomes a tensor where `x` is.

torch builds it in C++ from the storage's own device, which is the CPU's here. On CUDA the list is copied to
the device once, and what autograd keeps for the backward pass lies there already.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulate.functions import FunctionMode, handles
from gapless.emulate.local import local
from gapless.emulate.places import HOST
from gapless.emulate.transfers import count_copy
from gapless.torch_internals import sequence_number

Tensor = torch.Tensor
_MANY_NODES = 200_000


@handles(Tensor.__getitem__)
def _getitem(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _indexed(mode, func, args, "Tensor.__getitem__", "aten::index")


@handles(Tensor.__setitem__)
def _setitem(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = sequence_number()
    _indexed(mode, func, args, "Tensor.__setitem__", "aten::index_put_")
    _remember_host_value(mode, before, args[2] if len(args) > 2 else None)


@handles(torch.index_put, Tensor.index_put, Tensor.index_put_)
def _index_put(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = sequence_number()
    out = func(*args, **kwargs)
    _remember_host_value(mode, before, kwargs.get("values", args[2] if len(args) > 2 else None))
    return out


def _remember_host_value(mode: FunctionMode, before: int, value: Any) -> None:
    """Backward assigns zeros that lie where the value lay; C++ makes them from what it kept of its type."""
    after = sequence_number()
    if after == before or mode.on_device(value):
        return
    if len(local.host_values) > _MANY_NODES:
        local.host_values.clear()
    local.host_values.update(range(before, after))


def _indexed(mode: FunctionMode, func: Any, args: tuple[Any, ...], call: str, operator: str) -> Any:
    before = local.call
    local.call = before or call
    try:
        index = args[1]
        kind = type(index)
        if kind is list or (kind is tuple and list in map(type, index)):
            target = mode.core.device_of(args[0])
            if target >= 0:
                placed = _placed(mode, index, target, operator)
                return func(args[0], placed, *args[2:])
        return func(*args)
    finally:
        local.call = before


def _placed(mode: FunctionMode, index: Any, target: int, operator: str) -> Any:
    """`index` with its lists of numbers as tensors on the device `target`."""
    if type(index) is tuple:
        return tuple(_placed(mode, item, target, operator) if type(item) is list else item for item in index)
    if not _is_numbers(index):
        return index
    tensor = torch.tensor(index, dtype=None if _holds_bools(index) else torch.long, device="cpu")
    count_copy(
        mode.core, HOST, target, non_blocking=False, nbytes=tensor.nbytes, operator=operator, detail="index"
    )
    return mode.core.place(tensor, target)


def _is_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, int) or (type(value) is list and _is_numbers(value)) for value in values)


def _holds_bools(values: Any) -> bool:
    while type(values) is list and values:
        values = values[0]
    return isinstance(values, bool)
