"""Operators made of others: composite ones of ATen, and those with a body in Python (`torch.library`).

Three things are off inside a mode's handler and have to be switched on again for what an operator runs inside.
The mode itself:
A mode is off inside its own handler, so the body of a custom operator would run on a machine without a GPU: a
factory on "cuda" inside it would fail. It runs with the dispatch mode on again. And an operator that was given a kernel for CUDA alone has none that the
CPU values here could reach: its CUDA kernel is called instead, where that is Python.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.library
from torch.overrides import _pop_mode_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.emulate.refusals import refuse

Key: Any = torch._C.DispatchKey

_BUILT_IN = frozenset({"aten", "prim", "c10d", "_c10d_functional", "quantized", "mkldnn", "mkl", "profiler"})
_ON_HOST = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key


def runner(func: Any, mode: TorchDispatchMode) -> Callable[[int, Any, dict[str, Any]], Any] | None:
    """How to run the overload `func`, given its arguments' device; None where calling it is all there is to do.

    Raises (when run):
        NotEmulated: the operator has a compiled kernel for CUDA and none for the CPU.
    """
    if func.namespace in _BUILT_IN:
        return None
    name = func.name()
    on_cuda = _in_python(func, "CUDA")
    on_host = next((getattr(Key, key) for key in _ON_HOST if _in_python(func, key)), None)
    reachable = any(_has_kernel(name, key) for key in (*_ON_HOST, "CompositeImplicitAutograd"))
    if not on_cuda and on_host is None and reachable:
        return None

    def run(index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        if index >= 0 and on_cuda:
            key = Key.CUDA
        elif on_host is not None:
            key = on_host
        elif index >= 0 and not reachable and _has_kernel(name, "CUDA"):
            raise refuse(
                f"The CUDA kernel of {name}", "Register a kernel for the CPU too, and it will be used here."
            )
        else:
            return func(*args, **kwargs)
        with mode, _unseen():
            return func._op_dk(key, *args, **kwargs)

    return run


def decomposer(func: Any, mode: TorchDispatchMode) -> Callable[[Any, dict[str, Any]], Any] | None:
    """How to run `func` by its parts, if it has any; they are what the table of waits knows.

    Autograd takes composite operators apart before they come here, but there is none of it in inference mode
    and in the body of a kernel.
    """
    name = func.name()
    if not _has_kernel(name, "CompositeImplicitAutograd") or _has_kernel(name, "CPU"):
        return None

    def run(args: Any, kwargs: dict[str, Any]) -> Any:
        with mode, _unseen():
            return func._op_dk(Key.CompositeImplicitAutograd, *args, **kwargs)

    return run


def _in_python(func: Any, key: str) -> bool:
    """Whether somebody registered a Python function as kernel of `func` for this dispatch key."""
    schema = func._schema
    short = schema.name.split("::", 1)[1]
    if schema.overload_name:
        short = f"{short}.{schema.overload_name}"
    return f"{func.namespace}/{short}/{key}" in torch.library._impls


def _unseen() -> AbstractContextManager[Any]:
    """A function mode would be shown the call again, without the dispatch key; most often it is off already."""
    return _pop_mode_temporarily() if torch._C._len_torch_function_stack() else nullcontext()
