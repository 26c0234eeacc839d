"""Tensors that move between host and device, and the waits for them.

`gapless.model.copies` decides which copy waits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from gapless.emulation.core import constants
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST, PINNED
from gapless.model import Mechanism, copies
from gapless.torch_internals import DisableTorchFunction, no_torch_dispatch

Tensor = torch.Tensor
_to = torch.Tensor.to  # the original: scripts may replace it with a wrapper


def count_copy(
    core: EmulationCore,
    source: int,
    target: int,
    *,
    non_blocking: bool,
    nbytes: int,
    operator: str = "aten::_to_copy",
    call: str = "",
    detail: str = "",
    fresh: bool = False,
    strided: bool = False,
    batch: bool | None = None,
    about: tuple[Any, ...] = (),
) -> bool | None:
    """Record a copy between two placements, and its wait if there is one.

    Returns True if the copy runs asynchronously and needs the host memory until it is done, None if its
    call already took the values and nothing waits, else False.

    `fresh`: the operator itself allocates the host side of a device-to-host copy, as pinned memory if it
    may not block. `strided`: the result of `gapless.model.copies.strided`. `batch`: whether the data came
    from a DataLoader. `about` holds what is copied.
    """
    if nbytes == 0 or (source >= 0) == (target >= 0):
        return False
    to_device = target >= 0
    direction: Mechanism = "h2d" if to_device else "d2h"
    is_pinned = (source if to_device else target) == PINNED
    memory: copies.Memory = (
        "pinned" if is_pinned or (fresh and non_blocking and not to_device) else "pageable"
    )
    copy = copies.Copy(
        to_device=to_device, memory=memory, nbytes=nbytes, non_blocking=non_blocking, strided=strided
    )
    waits = copies.waits(copy, core.gpu.capability)
    unpinned = memory == "pageable" or strided  # a strided copy goes through pageable memory
    if waits is False and not (unpinned and core.graphs.copies_need_pinned_memory()):
        core.record_copy(direction, nbytes, "pageable" if unpinned else "pinned")
        return None if unpinned else True
    if not detail:
        detail = "pinned" if is_pinned else "pageable" if waits else "unmeasured"
        detail = "strided" if strided and memory == "pinned" else detail
    core.wait(operator, direction, call=call, detail=detail, nbytes=nbytes, batch=batch, about=about)
    return False


def count_move(
    core: EmulationCore,
    source: Tensor,
    target: Tensor,
    places: tuple[int, int],
    *,
    non_blocking: bool,
    operator: str = "aten::_to_copy",
    call: str = "",
    detail: str = "",
    fresh: bool = False,
) -> bool | None:
    """`count_copy` of `source` into `target`, by their types and strides; `places` are their placements."""
    to_device = places[1] >= 0
    if to_device == (places[0] >= 0):
        return False
    if to_device and constants.is_constant(source):
        return None
    core.origins.note_copy(source, target, to_device, call)
    # Another type is converted on the device where the copy may not block, and else on the host.
    travels = source if to_device == non_blocking else target
    return count_copy(
        core,
        *places,
        non_blocking=non_blocking,
        nbytes=target.numel() * travels.element_size(),
        operator=operator,
        call=call,
        detail=detail,
        fresh=fresh,
        strided=_is_strided(source, target, to_device=to_device),
        batch=core.batches.holds(source) if to_device else None,
        about=(source,),
    )


def _is_strided(source: Tensor, target: Tensor, *, to_device: bool) -> bool:
    """Evaluate `gapless.model.copies.strided` for two tensors, the first of which may be broadcast."""
    host, device = (source, target) if to_device else (target, source)
    if any(tensor.layout is not torch.strided or tensor.is_nested for tensor in (host, device)):
        return False
    shape = tuple(target.shape)
    if host.is_contiguous() and host.shape == shape:
        return False
    missing = len(shape) - source.dim()
    if missing < 0:
        return False
    own = (1,) * missing + tuple(source.shape)
    steps = [
        0 if size != target_size else step
        for size, target_size, step in zip(own, shape, (0,) * missing + source.stride(), strict=True)
    ]
    sides = (steps, target.stride()) if to_device else (target.stride(), steps)
    return copies.strided(shape, *sides, same_dtype=source.dtype == target.dtype)


def move(
    core: EmulationCore,
    tensor: Tensor,
    target: int,
    *,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
    call: str = "",
    detail: str = "",
) -> Tensor:
    """Return `tensor` moved to `target` (`HOST` or a device index), as ``Tensor.to`` would.

    Gradients travel back the same way. Returns `tensor` itself if nothing has to change.
    """
    source = core.device_of(tensor)
    if source == target:
        return _InPlaceConversion.plain(tensor, dtype, copy, memory_format)
    if is_lazy(tensor):
        with DisableTorchFunction():  # empty so far: only placed
            return core.place(_to(tensor, dtype=dtype or tensor.dtype, copy=True), target)
    if unpacks_itself(type(tensor)):
        return _move_subclass(core, tensor, target, source, dtype, non_blocking)
    state = core.placement.state_of(tensor)
    core.expect_arrival(tensor, state, target)
    after = PINNED if target == HOST and non_blocking else target
    result: Tensor
    with core.races.show_arrived(tensor, after):
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            result = core.place(
                _copy_values(core, tensor, dtype or tensor.dtype, memory_format, after), after
            )
        elif tensor.is_nested:
            result = _move_nested(core, tensor, after, source, dtype)
        else:
            result = ToCopy.apply(tensor, core, after, dtype, memory_format, non_blocking)
    asynchronous = count_move(
        core, tensor, result, (state, target), non_blocking=non_blocking, call=call, detail=detail, fresh=True
    )
    if tensor.numel() and not tensor.is_nested:
        core.races.record_copy(
            tensor, result, state, after, asynchronous=asynchronous, action=call or "Tensor.to"
        )
    return result


def _copy_values(
    core: EmulationCore, tensor: Tensor, dtype: torch.dtype, memory_format: torch.memory_format, target: int
) -> Tensor:
    """Copy the values of a tensor on its way to `target`; operators inside are not counted."""
    local.quiet += 1
    before, local.target = local.target, target
    try:
        out = _to(tensor, dtype=dtype, copy=True, memory_format=memory_format)
    finally:
        local.quiet -= 1
        local.target = before
    return core.note_arrival(out) if target < 0 else out


def _move_nested(
    core: EmulationCore, tensor: Tensor, target: int, source: int, dtype: torch.dtype | None
) -> Tensor:
    """Move a nested tensor, which custom functions do not support; a hook moves its gradient back."""
    out = core.place(_to(tensor, dtype=dtype or tensor.dtype, copy=True), target)
    out.register_hook(lambda gradient: move(core, gradient, source))
    return out


def _move_subclass(
    core: EmulationCore,
    tensor: Tensor,
    target: int,
    source: int,
    dtype: torch.dtype | None,
    non_blocking: bool,
) -> Tensor:
    """Move a wrapper subclass by moving its parts; one that does not name them moves itself."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        result: Tensor = Rewrapped.apply(tensor, core, target, dtype, non_blocking)
        return result
    device = torch.device("cuda", target) if target >= 0 else torch.device("cpu")
    before = local.host_asked
    local.host_asked = target < 0
    try:
        with DisableTorchFunction():
            out = _to(tensor, device, dtype or tensor.dtype, non_blocking, True)
    finally:
        local.host_asked = before
    if out.requires_grad:
        out.register_hook(lambda gradient: move(core, gradient, source))
    return out


def unpacks_itself(kind: type) -> bool:
    """Whether tensors of this class handle operators themselves (``__torch_dispatch__``)."""
    return getattr(kind, "__torch_dispatch__", None) not in (None, no_torch_dispatch)


class _InPlaceConversion:
    """A conversion without a move."""

    @staticmethod
    def plain(
        tensor: Tensor, dtype: torch.dtype | None, copy: bool, memory_format: torch.memory_format
    ) -> Tensor:
        if not copy and dtype in (None, tensor.dtype) and memory_format is torch.preserve_format:
            return tensor
        return _to(tensor, dtype=dtype or tensor.dtype, copy=copy, memory_format=memory_format)


class ToCopy(torch.autograd.Function):
    """A copy to another device whose gradient returns to the input's device."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        tensor: Tensor,
        core: EmulationCore,
        target: int,
        dtype: torch.dtype | None,
        memory_format: torch.memory_format,
        non_blocking: bool,
    ) -> Tensor:
        ctx.core, ctx.source, ctx.dtype = core, core.device_of(tensor), tensor.dtype
        return core.place(_copy_values(core, tensor, dtype or tensor.dtype, memory_format, target), target)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        back = move(ctx.core, gradient, ctx.source, dtype=ctx.dtype)
        return back, None, None, None, None, None


class Rewrapped(torch.autograd.Function):
    """Rebuilds a wrapper subclass around its moved parts; its gradient returns the same way."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, tensor: Any, core: EmulationCore, target: int, dtype: torch.dtype | None, non_blocking: bool
    ) -> Tensor:
        ctx.core, ctx.source, ctx.dtype = core, core.device_of(tensor), tensor.dtype
        names, context = tensor.__tensor_flatten__()
        parts = {}
        for name in names:
            part = getattr(tensor, name)
            to = dtype if part.dtype == tensor.dtype else None
            parts[name] = move(core, part, target, dtype=to, non_blocking=non_blocking)
        out: Tensor = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return move(ctx.core, gradient, ctx.source, dtype=ctx.dtype), None, None, None, None
