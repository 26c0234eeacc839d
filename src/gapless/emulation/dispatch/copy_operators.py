"""Dispatch handlers for operators that copy, pin or query placement."""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation.core.transfers import count_move
from gapless.emulation.dispatch.operators import OperatorMode, handles
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST, ORPHAN, PINNED

_CPU = torch.device("cpu")
_aten: Any = torch.ops.aten


@handles("aten::copy_")
def _copy(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    placement = mode.core.placement
    to, of = placement.state_of(target), placement.state_of(source)
    if to == ORPHAN and of >= 0:
        placement.put(target, to := of)
    elif of == ORPHAN and to >= 0:
        placement.put(source, of := to)
    asynchronous: bool | None = False
    meta = target.is_meta or source.is_meta
    if (to >= 0) != (of >= 0) and not meta:
        asynchronous = count_move(
            mode.core,
            source,
            target,
            (of, to),
            non_blocking=non_blocking,
            operator="aten::copy_",
            detail="value" if source.dim() == 0 and of < 0 and to >= 0 else "",
        )
    races = mode.core.races
    if of < 0 and to < 0 and races.busy:
        races.check_host_operator(mode.of(func), args, kwargs)
    local.target = to
    try:
        with races.show_arrived(source, to):
            out = mode.call(func, args, kwargs)
    finally:
        local.target = HOST
    if of < 0 and to < 0:
        mode.note_host_operator(mode.of(func), args, kwargs, out)
    if to < 0 <= of:
        mode.core.note_arrival(target)
    if to >= 0 and of == to:
        mode.launched(func, args, kwargs, out)
    elif (to >= 0 or of >= 0) and not meta:
        races.record_copy(source, target, of, to, asynchronous=asynchronous, action="aten::copy_")
    return out


@handles("aten::_to_copy")
def _to_copy(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if not isinstance(tensor, torch.Tensor):
        return func(*args, **kwargs)  # vmap passes Python numbers
    placement = mode.core.placement
    state = placement.state_of(tensor)
    device = kwargs.get("device")
    if tensor.is_meta or (device is not None and device.type == "meta"):
        return func(*args, **kwargs)
    target, races = state, mode.core.races
    if device is not None and (device.type == "cuda" or local.host_asked):
        target = mode.core.index_of(device)
        mode.core.expect_arrival(tensor, state, target)
        kwargs = {**kwargs, "device": _CPU}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
        target = PINNED if target == HOST else target
    if races.busy and state < 0 and target < 0:
        races.check_host_operator(mode.of(func), args, kwargs)
    with races.show_arrived(tensor, target):
        out = _run_copy(mode, func, args, kwargs, target)
    non_blocking = bool(kwargs.get("non_blocking", False))
    asynchronous = count_move(mode.core, tensor, out, (state, target), non_blocking=non_blocking, fresh=True)
    if target < 0 <= state:
        mode.core.note_arrival(out)
    placement.put(out, HOST if target == PINNED and state == PINNED else target)
    if state < 0 and target < 0:
        mode.note_host_operator(mode.of(func), args, kwargs, out)
    if state >= 0 and target == state:
        mode.launched(func, args, kwargs, out)
    elif state >= 0 or target >= 0:
        races.record_copy(tensor, out, state, target, asynchronous=asynchronous, action="aten::_to_copy")
    return out


def _run_copy(mode: OperatorMode, func: Any, args: Any, kwargs: dict[str, Any], target: int) -> Any:
    """Run the copy with `local.target` set, if it goes to a device."""
    before = local.target
    local.target = target if target >= 0 else before
    try:
        return mode.call(func, args, kwargs)
    finally:
        local.target = before


@handles("aten::is_pinned")
def _is_pinned(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.core.is_pinned(args[0])


@handles("aten::_pin_memory")
def _pin_memory(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode.core.races.check_host_access(args[0], False, "Tensor.pin_memory")
    copied = mode.of(_aten.clone.default).call(args[0])
    return mode.core.place(mode.core.note_arrival(copied), PINNED)


@handles("aten::record_stream")
def _record_stream(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if mode.core.placement.memory is not None:
        mode.core.placement.memory.used_elsewhere(args[0])
    mode.core.races.record_stream(*args)
    return None


@handles("aten::_pack_padded_sequence")
def _pack_padded_sequence(
    mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Place the packed data where the input is; the batch sizes stay on the host by contract."""
    packed, sizes = mode.call(func, args, kwargs)
    state = mode.core.placement.state_of(args[0])
    return mode.core.place(packed, state) if state != HOST else packed, sizes


@handles("aten::_nested_tensor_size", "aten::_nested_tensor_strides", "aten::_nested_tensor_storage_offsets")
def _host_facts(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run on the host, where nested tensors keep their sizes."""
    return func(*args, **kwargs)


@handles("aten::set_")
def _set(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Keep the tensor's placement for a new storage; a given source brings its own."""
    state = mode.core.placement.state_of(args[0])
    out = func(*args, **kwargs)
    return mode.core.place(out, state) if len(args) == 1 and not kwargs else out
