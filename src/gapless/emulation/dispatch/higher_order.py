"""Run higher-order operators (`torch.cond`, flex attention, DTensor's random draws).

Their kernels are Python functions by dispatch key. On a device CUDA's kernel is taken if there is one, else
the composite one, else the CPU's. It runs with the mode on, so that the operators inside are seen.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import FunctionType
from typing import Any

from gapless import trees
from gapless.emulation.dispatch.inside import Overlay, Proxy
from gapless.emulation.support.patches import Patches
from gapless.torch_internals import DispatchKey, HigherOrderOperator, TorchDispatchMode, path

_Key: Any = DispatchKey
_ON_DEVICE = tuple(
    getattr(_Key, name) for name in ("CUDA", "CompositeExplicitAutograd", "CPU", "BackendSelect")
)
_ON_HOST = tuple(
    getattr(_Key, name) for name in ("CPU", "CompositeExplicitAutograd", "BackendSelect", "CUDA")
)
_CONTROL = frozenset({"cond", "while_loop", "map_impl", "scan"})
"""Operators whose backward traces their functions with new device tensors, which cannot exist here."""
_MODULE, _, _QUESTION = path("current_dispatch_mode").rpartition(".")


def run(mode: TorchDispatchMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the higher-order operator `func` with `mode` seeing what it does.

    Raises:
        NotImplementedError: it has no kernel outside of a compiler (torch's own text).
    """
    on_device = any(tensor.is_cuda for tensor in trees.tensors((args, kwargs)))
    kernel = kernel_of(func, on_device)
    if kernel is None:
        key = _Key.CUDA if on_device else _Key.CPU
        raise NotImplementedError(
            f"could not find kernel for HigherOrderOperator {func.name()} at dispatch key {key} "
            f"(resolved from {key})"
        )
    with mode:
        return _unasking(kernel)(*args, **kwargs)


def install(patches: Patches) -> None:
    """Make autograd record the operators that control flow actually runs (the branch taken, each iteration).

    Its own backward would trace both branches for the device.
    """
    dispatch = HigherOrderOperator.dispatch

    def follow(func: Any, dispatch_key: Any, /, *args: Any, **kwargs: Any) -> Any:
        if func.name() in _CONTROL and dispatch_key.name.startswith("Autograd"):
            kernel = kernel_of(func, True)
            if kernel is not None and any(tensor.is_cuda for tensor in trees.tensors((args, kwargs))):
                return _unasking(kernel)(*args, **kwargs)
        return dispatch(func, dispatch_key, *args, **kwargs)

    patches.set(HigherOrderOperator, "dispatch", follow)


def kernel_of(func: Any, on_device: bool) -> Callable[..., Any] | None:
    """The kernel of `func` for the device or the host; None if it has none."""
    kernels = func.py_kernels
    kernel = next((kernels[key] for key in (_ON_DEVICE if on_device else _ON_HOST) if key in kernels), None)
    return kernel if callable(kernel) else None


def _unasking(kernel: Any) -> Any:
    """Return a copy of `kernel` that sees no active mode: many kernels refuse to run below one.

    They check with a torch function, which some import in their body.
    """
    function = getattr(kernel, "__func__", kernel)
    if type(function) is not FunctionType or _QUESTION not in function.__code__.co_names:
        return kernel
    replaced = {_QUESTION: lambda: None, "__builtins__": {**vars(builtins), "__import__": _import}}
    copy = FunctionType(
        function.__code__,
        Overlay(function.__globals__, replaced),
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    owner = getattr(kernel, "__self__", None)
    return copy if owner is None else copy.__get__(owner)


def _import(name: str, *rest: Any) -> Any:
    module = builtins.__import__(name, *rest)
    return Proxy(module, {_QUESTION: lambda: None}) if name == _MODULE else module
