"""Handlers for functions that create tensors: from values, empty, or like other tensors."""

from __future__ import annotations

from typing import Any

import torch

from gapless import trees
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.core.transfers import count_copy, move
from gapless.emulation.dispatch.functions import FunctionMode, Handler, as_device, handles
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST, PINNED
from gapless.torch_internals import default_device

Tensor = torch.Tensor


def _bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _default_device() -> torch.device | None:
    """The device of ``torch.set_default_device``, whose own mode sits below this one."""
    context = getattr(default_device, "device_context", None)
    return None if context is None else context.device


def count_reads(core: EmulationCore, data: Any, call: str) -> None:
    """Count a read for each device tensor in the list `data`: C++ converts them unseen by any mode."""
    if isinstance(data, (list, tuple)):
        read = sum(core.placement.state_of(tensor) >= 0 for tensor in trees.tensors(data))
        core.wait("aten::_local_scalar_dense", "read", call=call, waits=read)


def _from_values(name: str, keeps_tensors: bool) -> Handler:
    """Make a handler for `torch.tensor` and similar: build values on the host, then copy to the device."""

    def handler(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        named_device = kwargs.get("device")
        data: Any = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        is_tensor = isinstance(data, Tensor)
        wanted = as_device(named_device) if named_device is not None else _default_device()
        source = mode.core.placement.state_of(data) if is_tensor else HOST
        if wanted is None and is_tensor and (keeps_tensors or source >= 0):
            target = source
        else:
            target = HOST if wanted is None else mode.core.index_of(wanted)
        if wanted is not None and wanted.type not in ("cuda", "cpu"):
            return func(*args, **kwargs)
        if is_tensor and keeps_tensors:
            copy = bool(kwargs.get("copy"))
            return move(mode.core, data, max(target, HOST), dtype=kwargs.get("dtype"), copy=copy, call=name)
        quietly = {**kwargs, "device": torch.device("cpu")}
        pinned = bool(quietly.pop("pin_memory", False))
        if is_tensor and source >= 0:
            local.quiet += 1  # a tensor from a tensor is a clone on its device
        try:
            out = func(*args, **quietly)
        finally:
            if is_tensor and source >= 0:
                local.quiet -= 1
        count_reads(mode.core, data, name)
        mode.core.origins.note_made(out, data, name)
        if target >= 0 and not (is_tensor and source == target):
            detail = "" if is_tensor else ("scalar" if out.dim() == 0 or _is_python_values(data) else "")
            count_copy(
                mode.core, source, target, non_blocking=False, nbytes=_bytes_of(out), call=name,
                detail=detail, about=(out,),
            )  # fmt: skip
        return mode.core.place(out, PINNED if pinned and target == HOST else target)

    return handler


def _is_python_values(data: Any) -> bool:
    return isinstance(data, (int, float, complex, bool, list, tuple))


handles(torch.tensor)(_from_values("torch.tensor", keeps_tensors=False))
handles(torch.as_tensor)(_from_values("torch.as_tensor", keeps_tensors=True))
handles(torch.asarray)(_from_values("torch.asarray", keeps_tensors=True))


@handles(Tensor.new_tensor)
def _new_tensor(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, data = args[0], args[1] if len(args) > 1 else kwargs["data"]
    named_device = kwargs.get("device")
    target = (
        mode.core.device_of(tensor) if named_device is None else mode.core.index_of(as_device(named_device))
    )
    options = {**kwargs, "device": torch.device("cpu")}
    out = func(*args, **options)
    count_reads(mode.core, data, "Tensor.new_tensor")
    source = mode.core.device_of(data) if isinstance(data, Tensor) else HOST
    if source != target:
        detail = "scalar" if _is_python_values(data) else ""
        count_copy(
            mode.core, source, target, non_blocking=False, nbytes=_bytes_of(out), call="Tensor.new_tensor",
            detail=detail,
        )  # fmt: skip
    return mode.core.place(out, target)


@handles(Tensor.new)
def _new(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Build values on the host and copy them; share a tensor or a storage; a size gives an empty tensor."""
    target = mode.core.device_of(args[0])
    source: Any = args[1] if len(args) == 2 else kwargs.get("other")
    if isinstance(source, Tensor):
        if source.device.type != args[0].device.type:
            with mode:
                raise TypeError(f"expected {args[0].type()} (got {source.type()})")
        return func(*args, **kwargs)
    out = func(*args, **kwargs)
    if isinstance(source, (torch.UntypedStorage, torch.TypedStorage)):
        return out
    if hasattr(source, "__len__") and not isinstance(source, torch.Size):
        count_reads(mode.core, source, "Tensor.new")
        count_copy(
            mode.core, HOST, target, non_blocking=False, nbytes=_bytes_of(out), call="Tensor.new",
            detail="scalar",
        )  # fmt: skip
    return mode.core.place(out, target)


@handles(Tensor.__deepcopy__)
def _deepcopy(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    state = mode.core.placement.state_of(args[0])
    out = func(*args, **kwargs)
    return mode.core.place(out, state) if state >= 0 else out


def _factory(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a factory called from Python: without a device its result is on the host (`local.explicit`)."""
    if kwargs.get("device") is not None:
        return mode.run_on_named_device(func, args, kwargs)
    before = local.explicit
    local.explicit = True
    try:
        return func(*args, **kwargs)
    finally:
        local.explicit = before


for _name in (
    "zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm", "arange", "range", "linspace",
    "logspace", "eye", "empty_strided", "scalar_tensor", "normal", "tril_indices", "triu_indices",
    "bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window", "from_numpy",
    "frombuffer", "from_file", "empty_permuted", "vander", "cartesian_prod", "meshgrid",
):  # fmt: skip
    _torch_factory = getattr(torch, _name, None)
    if _torch_factory is not None:
        handles(_torch_factory)(_factory)


def _sparse(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Create a sparse tensor where its parts are, or move them to the named device first."""
    named = kwargs.get("device")
    device = as_device(named) if named is not None else _default_device()
    parts = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    for value in (*args, *kwargs.values()):
        count_reads(mode.core, value, f"torch.{func.__name__}")
    if device is None and parts:
        device = parts[-1].device
    if device is None or device.type not in ("cuda", "cpu"):
        return func(*args, **kwargs)
    target = mode.core.index_of(device)

    def place_part(part: Any) -> Any:
        if isinstance(part, Tensor):
            return move(mode.core, part, target, call=f"torch.{func.__name__}")
        if target < 0 or not _is_values(part):
            return part
        return move(mode.core, torch.tensor(part), target, call="torch.tensor", detail="scalar")

    with torch.device("cpu"):
        out = func(
            *map(place_part, args), **{n: place_part(value) for n, value in kwargs.items() if n != "device"}
        )
    return mode.core.place(out, target) if target >= 0 else out


def _is_values(part: Any) -> bool:
    """Whether `part` is a list of numbers, not a size."""
    return isinstance(part, list) and not isinstance(part, torch.Size)


for _name in (
    "sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor",
    "sparse_compressed_tensor",
):  # fmt: skip
    handles(getattr(torch, _name))(_sparse)
