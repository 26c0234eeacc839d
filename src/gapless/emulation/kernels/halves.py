"""Compute matrix products in half precision as a GPU does: in float32, rounded at the end.

CPUs without instructions for float16 multiply it ten to fifty times slower than float32. Other operators lose
little and run unchanged. The float32 copies are not placed on the device: dtypes and memory of device tensors
stay the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from gapless.torch_internals import bf16_supported, has_kernel

Tensor = torch.Tensor
WidenedFunc = Callable[[Any, dict[str, Any]], Any]


@cache
def _products() -> frozenset[str]:
    """Names of the operators whose FLOPs torch counts: matrix products, convolutions, attention."""
    log = logging.getLogger("torch.utils.flop_counter")  # it warns if Triton is not installed
    before, log.disabled = log.disabled, True
    try:
        from torch.utils.flop_counter import flop_registry
    finally:
        log.disabled = before
    return frozenset(str(packet).replace(".", "::", 1) for packet in flop_registry)


@cache
def slow_dtypes() -> frozenset[torch.dtype]:
    """The half-precision dtypes that this CPU multiplies slowly.

    float16 always is: even with instructions for it products take as long as in float32, and the gradient of
    a convolution's weight about a hundred times as long (Xeon with AVX512-FP16, torch 2.13).
    """
    try:
        fast = bf16_supported is not None and bool(bf16_supported())
    except RuntimeError:
        fast = False
    return frozenset({torch.float16} if fast else {torch.float16, torch.bfloat16})


def has_slow_tensor(args: Any) -> bool:
    """Whether a tensor among `args` has one of the `slow_dtypes`."""
    dtypes = slow_dtypes()
    return any(isinstance(arg, Tensor) and arg.dtype in dtypes for arg in args)


def widen_func(func: Any) -> WidenedFunc | None:
    """Return a function that runs `func` in float32 and rounds; None if `func` need not be widened."""
    schema = func._schema
    name = schema.name.removesuffix("_").replace("_for_cpu", "")
    on_host = any(has_kernel(func.name(), key) for key in ("CPU", "CompositeExplicitAutograd"))
    if not slow_dtypes() or name not in _products() or not on_host:
        return None
    written = [
        argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments
    ]
    names = [arg.name for arg in schema.arguments]
    dtypes: dict[Any, tuple[Any, ...] | None] = {}

    def run(args: Any, kwargs: dict[str, Any]) -> Any:
        key = (len(args), *(value.dtype for value in (*args, *kwargs.values()) if isinstance(value, Tensor)))
        if key not in dtypes:
            dtypes[key] = _result_dtypes(func, args, kwargs)
        results = dtypes[key]
        if results is None:
            return func(*args, **kwargs)
        wide = [_wide(value) for value in args]
        options = {name: _wide(value) for name, value in kwargs.items()}
        out = func(*wide, **options)
        changed = [(arg, new) for arg, new, write in zip(args, wide, written, strict=False) if write]
        changed += [(value, options[name]) for name, value in kwargs.items() if written[names.index(name)]]
        if not changed:
            return _round_results(out, results)
        for target, new in changed:
            if new is not target:
                target.resize_(new.shape).copy_(new)
        return changed[0][0]

    return run


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in slow_dtypes() else value


def _result_dtypes(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The dtypes of the results of `func`, from its meta kernel; None if it fails or must not be widened.

    Operands of different precision must reach the operator itself, which raises: meta kernels accept them,
    and after widening they would be equal.
    """
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if len({tensor.dtype for tensor in tensors if tensor.is_floating_point()}) > 1:
        return None

    def empty(value: Any) -> Any:
        return value.to("meta") if isinstance(value, Tensor) else value

    try:
        out = func(*map(empty, args), **{name: empty(value) for name, value in kwargs.items()})
    except Exception:  # an operator without a shape rule, or arguments that do not fit
        return None
    results = out if isinstance(out, (tuple, list)) else (out,)
    return tuple(result.dtype if isinstance(result, Tensor) else None for result in results)


def _round_results(out: Any, dtypes: tuple[Any, ...]) -> Any:
    if isinstance(out, Tensor):
        return out.to(dtypes[0])
    parts = (
        result.to(dtype) if isinstance(result, Tensor) and dtype else result
        for result, dtype in zip(out, dtypes, strict=True)
    )
    return type(out)(parts)
