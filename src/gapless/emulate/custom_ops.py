"""Operators made of others: composite ones of ATen, and those with a body in Python (`torch.library`).

Inside a mode's handler two things are off that these need. The mode itself: the body of a custom operator
would run as on a machine without a GPU, and what it reads would not be seen. And the dispatch keys that
resolve lazy conjugation and negation: an ATen kernel that makes such views for itself would compute with
wrong values.

An operator that was given a kernel for CUDA alone has none that the CPU values here could reach: its CUDA
kernel is called instead, where that is Python.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from gapless.emulate.refusals import refuse
from gapless.torch_internals import (
    DispatchKey,
    TorchDispatchMode,
    count_function_modes,
    exclude_key,
    has_kernel,
    key_is_excluded,
    registered_in_python,
    without_function_mode,
)

Key: Any = DispatchKey
Runner = Callable[[int, Any, dict[str, Any]], Any]

_ATEN = frozenset({"aten", "prim", "quantized", "mkldnn", "mkl"})
_SEALED = frozenset({"c10d", "_c10d_functional", "profiler"})
_ON_HOST = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_VIEWS_INSIDE = (
    "aten::linalg_",
    "aten::_linalg_",
    "aten::fft_",
    "aten::_fft_",
    "aten::cholesky_",
    "aten::lu_",
)


def runner(func: Any, mode: TorchDispatchMode) -> Runner | None:
    """How to run the overload `func`, given its arguments' device; None where it can just be called.

    Raises (when run):
        NotEmulated: the operator has a compiled kernel for CUDA and none for the CPU.
    """
    if func.namespace in _SEALED:
        return None
    if func.namespace in _ATEN:
        return _resolving(func) if _makes_views_inside(func) else None
    return _custom(func, mode)


def _makes_views_inside(func: Any) -> bool:
    """Whether the kernel of `func` may call others on views it has made; views and factories do not."""
    schema = func._schema
    if any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns):
        return False
    if any(one.name == "device" for one in schema.arguments):
        return False
    return not has_kernel(func.name(), "CPU") or schema.name.startswith(_VIEWS_INSIDE)


def _resolving(func: Any) -> Runner:
    """Run a kernel that calls other operators on views it has made."""

    def run(index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        if not key_is_excluded(Key.Conjugate):
            return func(*args, **kwargs)
        exclude_key(Key.Conjugate, False)
        exclude_key(Key.Negative, False)
        try:
            return func(*args, **kwargs)
        finally:
            exclude_key(Key.Conjugate, True)
            exclude_key(Key.Negative, True)

    return run


def _custom(func: Any, mode: TorchDispatchMode) -> Runner | None:
    name = func.name()
    on_cuda = _in_python(func, "CUDA")
    on_host = next((getattr(Key, key) for key in _ON_HOST if _in_python(func, key)), None)
    reachable = any(has_kernel(name, key) for key in (*_ON_HOST, "CompositeImplicitAutograd"))
    if not on_cuda and on_host is None and reachable:
        return _resolving(func)

    def run(index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        if index >= 0 and on_cuda:
            key = Key.CUDA
        elif on_host is not None:
            key = on_host
        elif index >= 0 and not reachable and has_kernel(name, "CUDA"):
            raise refuse(
                f"The CUDA kernel of {name}", "Register a kernel for the CPU too, and it will be used here."
            )
        else:
            return func(*args, **kwargs)
        with _seen_by(mode):
            return func._op_dk(key, *args, **kwargs)

    return run


def decomposer(func: Any, mode: TorchDispatchMode) -> Callable[[Any, dict[str, Any]], Any] | None:
    """How to run `func` by its parts, if it has any; they are what the table of waits knows.

    Autograd takes composite operators apart before they come here, but there is none of it in inference mode
    and in the body of a kernel.
    """
    name = func.name()
    if not has_kernel(name, "CompositeImplicitAutograd") or has_kernel(name, "CPU"):
        return None

    def run(args: Any, kwargs: dict[str, Any]) -> Any:
        with _seen_by(mode):
            return func._op_dk(Key.CompositeImplicitAutograd, *args, **kwargs)

    return run


@contextlib.contextmanager
def _seen_by(mode: TorchDispatchMode) -> Iterator[None]:
    """Let `mode` see what a kernel that is called by its dispatch key runs inside.

    A function mode would be shown the call again, without the key; most often it is off already.
    """
    unseen = without_function_mode() if count_function_modes() else contextlib.nullcontext()
    excluded = key_is_excluded(Key.Conjugate)
    exclude_key(Key.Conjugate, False)
    exclude_key(Key.Negative, False)
    try:
        with mode, unseen:
            yield
    finally:
        exclude_key(Key.Conjugate, excluded)
        exclude_key(Key.Negative, excluded)


def _in_python(func: Any, key: str) -> bool:
    """Whether somebody registered a Python function as kernel of `func` for this dispatch key."""
    schema = func._schema
    short = schema.name.split("::", 1)[1]
    if schema.overload_name:
        short = f"{short}.{schema.overload_name}"
    return f"{func.namespace}/{short}/{key}" in registered_in_python
