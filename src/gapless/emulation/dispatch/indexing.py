"""Convert lists in an index (``x[[0, 2]]``) to tensors on the device of `x`.

torch's C++ would create them on the storage's own device, the CPU here. On CUDA the list is copied to the
device once, and autograd saves that tensor for backward.
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
_MAX_NODES_REMEMBERED = 200_000
"""Autograd nodes remembered before all are forgotten: bounds memory in long runs."""
"""Autograd nodes remembered before all are forgotten: bounds memory in long runs."""
_MASKS = (torch.bool, torch.uint8)
_BARE = tuple(getattr(torch, name) for name in ("uint16", "uint32", "uint64"))


@handles(Tensor.__getitem__)
def _getitem(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _run_indexing(mode, func, args, "Tensor.__getitem__", "aten::index")


@handles(Tensor.__setitem__)
def _setitem(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = sequence_number()
    value = args[2] if len(args) > 2 else None
    if VERSION >= (2, 15):
        args = _convert_for_2_15(mode, args)
    _run_indexing(mode, func, args, "Tensor.__setitem__", "aten::index_put_")
    if VERSION < (2, 15) or not isinstance(value, Number):
        _remember_host_value(mode, before, value)


def _convert_for_2_15(mode: FunctionMode, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert `args` of an assignment as torch 2.15 and later do on CUDA (``ATen/TensorIndexing.h``).

    A number is passed to ``index_fill_`` or ``masked_fill_``, or becomes a tensor on the target's device; a
    0-dim index tensor on the device is not read. torch decides by its tensors' device, the CPU for all
    of them here, so the arguments are converted where CUDA would decide differently.
    """
    target, index, value = args
    place = mode.core.device_of(target)
    several = type(index) is tuple or (type(index) is list and not _is_numbers(index))
    items = list(index) if several else [index]
    if place >= 0 and _lets_index_stay(mode, value, target, place):
        items = [item.view(1) if _stays_on_device(mode, item, target, place) else item for item in items]
        index = tuple(items) if several else items[0]
    if isinstance(value, Number):
        chosen = [item for item in items if _is_advanced(item, several)]
        elsewhere = any(isinstance(item, Tensor) and mode.core.device_of(item) != place for item in chosen)
        if elsewhere or (
            place >= 0 and chosen and not (len(chosen) == 1 and _uses_fill_kernel(target, chosen[0]))
        ):
            scalar = torch.scalar_tensor(args[2], dtype=target.dtype, device="cpu")
            value = mode.core.place(scalar, place)
    return target, index, value


def _lets_index_stay(mode: FunctionMode, value: Any, target: Tensor, place: int) -> bool:
    """Whether `value` lets index tensors stay on the device: a number or a 0-dim tensor of the dtype."""
    if not isinstance(value, Tensor):
        return True
    is_scalar_on_device = (
        value.dim() == 0 and mode.core.device_of(value) == place and value.dtype == target.dtype
    )
    return is_scalar_on_device and not is_alias_of(value, target)


def _stays_on_device(mode: FunctionMode, item: Any, target: Tensor, place: int) -> bool:
    """Whether `item` is a 0-dim index on the device that torch does not read to the host."""
    if not isinstance(item, Tensor) or item.dim() or item.dtype not in (torch.int64, torch.int32):
        return False
    return (
        mode.core.device_of(item) == place
        and target.dtype not in _BARE
        and not target.is_quantized
        and not is_alias_of(item, target)
    )


def _is_advanced(item: Any, several: bool) -> bool:
    """Whether `item` is an advanced index; a 0-dim integer index selects a view instead."""
    if isinstance(item, Tensor):
        return bool(item.dim()) or item.dtype in _MASKS
    return hasattr(item, "__len__") or (several and isinstance(item, bool))


def _uses_fill_kernel(target: Tensor, item: Any) -> bool:
    """Whether torch writes a number by ``masked_fill_`` or ``index_fill_`` if `item` is the only index."""
    if isinstance(item, Tensor) and item.dim():
        if item.dtype in _MASKS:
            return True
        if item.dtype != torch.int64 or (item.dim() > 1 and not item.is_contiguous()):
            return False
    elif not isinstance(item, (Tensor, list, bool)):
        return False  # a NumPy array or a range: torch converts it to a CPU tensor
    elif type(item) is list and _holds_bools(item):
        return True
    # Anything else becomes an integer index; there is no such kernel for one-byte floats.
    return not (target.is_floating_point() and target.itemsize == 1)


@handles(torch.index_put, Tensor.index_put, Tensor.index_put_)
def _index_put(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = sequence_number()
    out = func(*args, **kwargs)
    _remember_host_value(mode, before, kwargs.get("values", args[2] if len(args) > 2 else None))
    return out


def _remember_host_value(mode: FunctionMode, before: int, value: Any) -> None:
    """Remember the autograd nodes of an assigned host value: their backward creates zeros on the host."""
    after = sequence_number()
    if after == before or mode.on_device(value):
        return
    if len(local.host_values) > _MAX_NODES_REMEMBERED:
        local.host_values.clear()
    local.host_values.update(range(before, after))


def _run_indexing(mode: FunctionMode, func: Any, args: tuple[Any, ...], call: str, operator: str) -> Any:
    before = local.call
    local.call = before or call
    try:
        index = args[1]
        kind = type(index)
        if kind is list or (kind is tuple and list in map(type, index)):
            target = mode.core.device_of(args[0])
            if target >= 0:
                placed = _place_lists(mode, index, target, operator)
                return func(args[0], placed, *args[2:])
        if kind is Tensor and mode.on_device(index) and not mode.on_device(args[0]):
            with mode.core.origins.indexing(args[0]):
                return func(*args)
        return func(*args)
    finally:
        local.call = before


def _place_lists(mode: FunctionMode, index: Any, target: int, operator: str) -> Any:
    """Convert the lists of numbers in `index` to tensors on device `target`, and count the copy."""
    if type(index) is tuple:
        return tuple(
            _place_lists(mode, item, target, operator) if type(item) is list else item for item in index
        )
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
