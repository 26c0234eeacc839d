"""Tensors that move between host and device, and what the host waits for then.

CUDA's rules (`aten/src/ATen/native/cuda/Copy.cu`): a blocking copy between host and device always ends in a
stream synchronization, pinned or not. With ``non_blocking=True`` a pinned side makes it asynchronous; from or
to pageable memory the driver stages the data and the host waits all the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from gapless.emulate.core import Core
from gapless.emulate.local import local
from gapless.emulate.places import HOST, PINNED
from gapless.torch_internals import DisableTorchFunction, no_torch_dispatch

Tensor = torch.Tensor
_to = torch.Tensor.to  # the real one: scripts may put a wrapper in its place


def count_copy(
    core: Core,
    source: int,
    target: int,
    *,
    non_blocking: bool,
    nbytes: int,
    operator: str = "aten::_to_copy",
    call: str = "",
    detail: str = "",
    fresh: bool = False,
) -> bool:
    """Record the wait of a copy between two placements, if it makes one; whether it goes on by itself.

    `fresh` says that the host side of a device-to-host copy is allocated by the operator itself, which then
    takes pinned memory when asked not to block.
    """
    if nbytes == 0 or (source >= 0) == (target >= 0):
        return False
    to_device = target >= 0
    host_pinned = (source if to_device else target) == PINNED or (fresh and not to_device)
    if non_blocking and host_pinned:
        core.copied("h2d" if to_device else "d2h", nbytes)
        return True
    if not detail:
        pinned = (source if to_device else target) == PINNED
        detail = "pinned" if pinned else "pageable"
    core.wait(operator, "h2d" if to_device else "d2h", call=call, detail=detail, nbytes=nbytes)
    return False


def moved(
    core: Core,
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
    """`tensor` at `target` (`HOST` or a device index), as ``Tensor.to`` would give it.

    Gradients travel back the same way. Gives `tensor` itself where nothing has to change.
    """
    source = core.device_of(tensor)
    if source == target:
        return _Converted.plain(tensor, dtype, copy, memory_format)
    if is_lazy(tensor):
        with DisableTorchFunction():  # nothing in it yet: only its place is said
            return core.place(_to(tensor, dtype=dtype or tensor.dtype, copy=True), target)
    if unpacks_itself(type(tensor)):
        return _subclass_moved(core, tensor, target, source, dtype, non_blocking)
    state = core.placement.state_of(tensor)
    nbytes = tensor.numel() * tensor.element_size()
    asynchronous = count_copy(
        core, state, target, non_blocking=non_blocking, nbytes=nbytes, call=call, detail=detail, fresh=True
    )
    core.arriving(tensor, state, target)
    after = PINNED if target == HOST and non_blocking else target
    if tensor.requires_grad and torch.is_grad_enabled():
        if tensor.is_nested:
            return _nested_moved(core, tensor, after, source, dtype)
        result: Tensor = ToCopy.apply(tensor, core, after, dtype, memory_format, non_blocking)
    else:
        result = core.place(_copied(core, tensor, dtype or tensor.dtype, memory_format, after), after)
    if nbytes:
        core.races.copied(tensor, result, state, after, asynchronous=asynchronous, what=call or "Tensor.to")
    return result


def _copied(
    core: Core, tensor: Tensor, dtype: torch.dtype, memory_format: torch.memory_format, target: int
) -> Tensor:
    """The values of a tensor on its way to `target`: the copy is counted, and not what it does here."""
    local.quiet += 1
    before, local.target = local.target, target
    try:
        out = _to(tensor, dtype=dtype, copy=True, memory_format=memory_format)
    finally:
        local.quiet -= 1
        local.target = before
    return core.arrived(out) if target < 0 else out


def _nested_moved(core: Core, tensor: Tensor, target: int, source: int, dtype: torch.dtype | None) -> Tensor:
    """Nested tensors do not pass through a custom function; a hook takes their gradient back."""
    out = core.place(_to(tensor, dtype=dtype or tensor.dtype, copy=True), target)
    out.register_hook(lambda gradient: moved(core, gradient, source))
    return out


def _subclass_moved(
    core: Core, tensor: Tensor, target: int, source: int, dtype: torch.dtype | None, non_blocking: bool
) -> Tensor:
    """A tensor around others moves when they do; one that does not name them is asked to move itself."""
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
        out.register_hook(lambda gradient: moved(core, gradient, source))
    return out


def unpacks_itself(kind: type) -> bool:
    """Whether tensors of this class handle operators themselves (``__torch_dispatch__``)."""
    return getattr(kind, "__torch_dispatch__", None) not in (None, no_torch_dispatch)


class _Converted:
    """A conversion that stays where it is."""

    @staticmethod
    def plain(
        tensor: Tensor, dtype: torch.dtype | None, copy: bool, memory_format: torch.memory_format
    ) -> Tensor:
        if not copy and dtype in (None, tensor.dtype) and memory_format is torch.preserve_format:
            return tensor
        return _to(tensor, dtype=dtype or tensor.dtype, copy=copy, memory_format=memory_format)


class ToCopy(torch.autograd.Function):
    """A copy to another device whose gradient comes back to where the input is."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        tensor: Tensor,
        core: Core,
        target: int,
        dtype: torch.dtype | None,
        memory_format: torch.memory_format,
        non_blocking: bool,
    ) -> Tensor:
        ctx.core, ctx.source, ctx.dtype = core, core.device_of(tensor), tensor.dtype
        return core.place(_copied(core, tensor, dtype or tensor.dtype, memory_format, target), target)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        back = moved(ctx.core, gradient, ctx.source, dtype=ctx.dtype)
        return back, None, None, None, None, None


class Rewrapped(torch.autograd.Function):
    """A subclass made anew around its parts at another device; its gradient comes back the same way."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, tensor: Any, core: Core, target: int, dtype: torch.dtype | None, non_blocking: bool
    ) -> Tensor:
        ctx.core, ctx.source, ctx.dtype = core, core.device_of(tensor), tensor.dtype
        names, context = tensor.__tensor_flatten__()
        parts = {}
        for name in names:
            part = getattr(tensor, name)
            to = dtype if part.dtype == tensor.dtype else None
            parts[name] = moved(core, part, target, dtype=to, non_blocking=non_blocking)
        out: Tensor = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return moved(ctx.core, gradient, ctx.source, dtype=ctx.dtype), None, None, None, None
