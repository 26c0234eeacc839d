"""Products of tensors in half precision, computed as a GPU does: accumulated in float32, rounded at the end.

CPUs multiply float16 some ten to fifty times slower than float32 where they
have no instructions for it. Other operators lose little, and stay as they are. What is made on the way is
nowhere placed: a tensor on the device has its dtype, and its memory, as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from gapless.torch_internals import bf16_supported, has_kernel

Tensor = torch.Tensor
Widened = Callable[[Any, dict[str, Any]], Any]


@cache
def _products() -> frozenset[str]:
    """The operators whose work torch counts in floating point operations: products of matrices."""
    log = logging.getLogger("torch.utils.flop_counter")  # which remarks that Triton is not there
    before, log.disabled = log.disabled, True
    try:
        from torch.utils.flop_counter import flop_registry
    finally:
        log.disabled = before
    return frozenset(str(packet).replace(".", "::", 1) for packet in flop_registry)


@cache
def slow() -> frozenset[torch.dtype]:
    """The dtypes of half precision that this CPU has no fast products of.

    Of float16 none has: with instructions for it products take as long as in float32, and the gradient of a
    convolution's weight some hundred times as long (Xeon with AVX512-FP16, torch 2.13).
    """
    try:
        fast = bf16_supported is not None and bool(bf16_supported())
    except RuntimeError:
        fast = False
    return frozenset({torch.float16} if fast else {torch.float16, torch.bfloat16})


def any_slow(args: Any) -> bool:
    """Whether a tensor among `args` is of a half precision that the CPU is slow in."""
    dtypes = slow()
    return any(isinstance(one, Tensor) and one.dtype in dtypes for one in args)


def widened(func: Any) -> Widened | None:
    """How to run the overload `func` on tensors of half precision; None where that is nothing else."""
    schema = func._schema
    name = schema.name.removesuffix("_").replace("_for_cpu", "")
    on_host = any(has_kernel(func.name(), key) for key in ("CPU", "CompositeExplicitAutograd"))
    if not slow() or name not in _products() or not on_host:
        return None
    written = [one.alias_info is not None and one.alias_info.is_write for one in schema.arguments]
    names = [one.name for one in schema.arguments]
    dtypes: dict[Any, tuple[Any, ...] | None] = {}

    def run(args: Any, kwargs: dict[str, Any]) -> Any:
        key = (len(args), *(one.dtype for one in (*args, *kwargs.values()) if isinstance(one, Tensor)))
        if key not in dtypes:
            dtypes[key] = _dtypes(func, args, kwargs)
        results = dtypes[key]
        if results is None:
            return func(*args, **kwargs)
        wide = [_wide(one) for one in args]
        options = {name: _wide(one) for name, one in kwargs.items()}
        out = func(*wide, **options)
        changed = [(one, new) for one, new, write in zip(args, wide, written, strict=False) if write]
        changed += [(one, options[name]) for name, one in kwargs.items() if written[names.index(name)]]
        if not changed:
            return _rounded(out, results)
        for one, new in changed:
            if new is not one:
                one.resize_(new.shape).copy_(new)
        return changed[0][0]

    return run


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in slow() else value


def _dtypes(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The dtypes of what `func` gives for these, asked of tensors without values; None where that fails.

    Factors of different precision are for the operator to refuse, in its own words: the rules of shapes take
    them, and widened they would be alike.
    """
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
    if len({one.dtype for one in tensors if one.is_floating_point()}) > 1:
        return None

    def empty(value: Any) -> Any:
        return value.to("meta") if isinstance(value, Tensor) else value

    try:
        out = func(*map(empty, args), **{name: empty(one) for name, one in kwargs.items()})
    except Exception:  # an operator without a shape rule, or arguments that do not fit
        return None
    results = out if isinstance(out, (tuple, list)) else (out,)
    return tuple(one.dtype if isinstance(one, Tensor) else None for one in results)


def _rounded(out: Any, dtypes: tuple[Any, ...]) -> Any:
    if isinstance(out, Tensor):
        return out.to(dtypes[0])
    parts = (
        one.to(to) if isinstance(one, Tensor) and to else one for one, to in zip(out, dtypes, strict=True)
    )
    return type(out)(parts)
