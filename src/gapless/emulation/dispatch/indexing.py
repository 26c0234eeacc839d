"""``x[[0, 2]]``: a list in an index becomes a tensor where `x` is.

torch builds it in C++ from the storage's own device, which is the CPU's here. On CUDA the list is copied to
the device once, and what autograd keeps for the backward pass lies there already.
"""

from __future__ import annotations

from numbers import Number
from typing import Any

import torch

from gapless.emulation.core.transfers import count_copy
from gapless.emulation.dispatch.functions import FunctionMode, handles
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.torch_internals import VERSION, is_alias_of, sequence_number

Tensor = torch.Tensor
_MANY_NODES = 200_000
_MASKS = (torch.bool, torch.uint8)
_BARE = tuple(getattr(torch, name) for name in ("uint16", "uint32", "uint64"))


@handles(Tensor.__getitem__)
def _getitem(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _indexed(mode, func, args, "Tensor.__getitem__", "aten::index")


@handles(Tensor.__setitem__)
def _setitem(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = sequence_number()
    value = args[2] if len(args) > 2 else None
    if VERSION >= (2, 15):
        args = _as_since_2_15(mode, args)
    _indexed(mode, func, args, "Tensor.__setitem__", "aten::index_put_")
    if VERSION < (2, 15) or not isinstance(value, Number):
        _remember_host_value(mode, before, value)


def _as_since_2_15(mode: FunctionMode, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`args` of a write as torch 2.15 and later understand them on CUDA (``ATen/TensorIndexing.h``).

    A number is passed to the kernel of ``index_fill_`` or ``masked_fill_``, or made where it is written to; a
    position that is one number on the device stays there. torch asks where its tensors lie, which is the CPU
    here for all of them: where it would find otherwise it gets what it makes of that.
    """
    target, index, value = args
    place = mode.core.device_of(target)
    several = type(index) is tuple or (type(index) is list and not _is_numbers(index))
    items = list(index) if several else [index]
    if place >= 0 and _is_a_number_there(mode, value, target, place):
        items = [item.view(1) if _stays(mode, item, target, place) else item for item in items]
        index = tuple(items) if several else items[0]
    if isinstance(value, Number):
        chosen = [item for item in items if _is_advanced(item, several)]
        elsewhere = any(isinstance(item, Tensor) and mode.core.device_of(item) != place for item in chosen)
        if elsewhere or (place >= 0 and chosen and not (len(chosen) == 1 and _is_filled(target, chosen[0]))):
            made = torch.scalar_tensor(args[2], dtype=target.dtype, device="cpu")
            value = mode.core.place(made, place)
    return target, index, value


def _is_a_number_there(mode: FunctionMode, value: Any, target: Tensor, place: int) -> bool:
    """Whether `value` lets positions stay on the device: a number, or one of the type that lies there."""
    if not isinstance(value, Tensor):
        return True
    there = value.dim() == 0 and mode.core.device_of(value) == place and value.dtype == target.dtype
    return there and not is_alias_of(value, target)


def _stays(mode: FunctionMode, item: Any, target: Tensor, place: int) -> bool:
    """Whether `item` is a position on the device that torch does not read."""
    if not isinstance(item, Tensor) or item.dim() or item.dtype not in (torch.int64, torch.int32):
        return False
    return (
        mode.core.device_of(item) == place
        and target.dtype not in _BARE
        and not target.is_quantized
        and not is_alias_of(item, target)
    )


def _is_advanced(item: Any, several: bool) -> bool:
    """Whether `item` selects by values: what torch reads, a position of no dimensions, selects a view."""
    if isinstance(item, Tensor):
        return bool(item.dim()) or item.dtype in _MASKS
    return hasattr(item, "__len__") or (several and isinstance(item, bool))


def _is_filled(target: Tensor, item: Any) -> bool:
    """Whether a number is written by ``masked_fill_`` or ``index_fill_`` where `item` is the only index."""
    if isinstance(item, Tensor) and item.dim():
        if item.dtype in _MASKS:
            return True
        if item.dtype != torch.int64 or (item.dim() > 1 and not item.is_contiguous()):
            return False
    elif not isinstance(item, (Tensor, list, bool)):
        return False  # NumPy's, or a range: torch makes a tensor of it on the CPU here
    elif type(item) is list and _holds_bools(item):
        return True
    # Whatever else it is becomes an index of whole numbers, which numbers of one byte do without.
    return not (target.is_floating_point() and target.itemsize == 1)


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
