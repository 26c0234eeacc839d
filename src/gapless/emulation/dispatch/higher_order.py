"""Higher-order operators (`torch.cond`, flex attention, DTensor's random draws), which have Python in them.

They have kernels in Python, by dispatch key. On a device that is CUDA's own kernel, if there is one, else
the composite one; the host's is the last resort. It runs with the mode on, so that what is inside is seen.
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
"""Those whose own backward traces their functions on new tensors of the device, of which there are none."""
_MODULE, _, _QUESTION = path("current_dispatch_mode").rpartition(".")


def run(mode: TorchDispatchMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the higher-order operator `func` with `mode` seeing what it does.

    Raises:
        NotImplementedError: it has none outside of a compiler, in torch's words.
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
    """Let autograd follow what control flow runs, where gradients go through it: the operators of the branch
    taken, of each round. Their own backward would trace both branches for the device."""
    dispatch = HigherOrderOperator.dispatch

    def followed(func: Any, dispatch_key: Any, /, *args: Any, **kwargs: Any) -> Any:
        if func.name() in _CONTROL and dispatch_key.name.startswith("Autograd"):
            kernel = kernel_of(func, True)
            if kernel is not None and any(tensor.is_cuda for tensor in trees.tensors((args, kwargs))):
                return _unasking(kernel)(*args, **kwargs)
        return dispatch(func, dispatch_key, *args, **kwargs)

    patches.set(HigherOrderOperator, "dispatch", followed)


def kernel_of(func: Any, on_device: bool) -> Callable[..., Any] | None:
    """The kernel of `func` that is called where its tensors are; None where it has none to call."""
    kernels = func.py_kernels
    found = next((kernels[key] for key in (_ON_DEVICE if on_device else _ON_HOST) if key in kernels), None)
    return found if callable(found) else None


def _unasking(kernel: Any) -> Any:
    """A copy of `kernel` that finds no mode on: many insist on it, though all that they need is to be called.

    They ask a function of torch's, which some import in their body.
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
