"""`torch.compiler.disable` without loading the compiler, which takes seconds: mark the function only."""

from __future__ import annotations

import functools
import importlib
from types import CodeType, FunctionType, MethodType
from typing import Any

from gapless.torch_internals import path

_codes: dict[bool, CodeType] = {}
"""Code objects of the wrappers, by whether they are recursive."""


def disable(
    function: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True
) -> Any:
    """Wrap `function` with the marks by which the compiler will skip it."""
    if function is None:
        return functools.partial(disable, recursive=recursive, reason=reason, wrapping=wrapping)
    if not isinstance(function, FunctionType | MethodType):  # modules and classes need torch's own wrapper
        real = importlib.import_module(path("dynamo")).disable
        return real(function, recursive, reason=reason, wrapping=wrapping)
    wrapper = _wrap_recursive(function) if recursive else _wrap_single(function)
    _codes[recursive] = wrapper.__code__
    wrapper._torchdynamo_disable = True
    wrapper._torchdynamo_disable_msg = reason
    wrapper._torchdynamo_disable_recursive = recursive
    wrapper._torchdynamo_orig_callable = function
    wrapper._torchdynamo_wrapper_id = id(wrapper)
    return wrapper


# The compiler identifies a wrapper by its code object, so the two kinds need separate functions.


def _wrap_recursive(function: Any) -> Any:
    @functools.wraps(function)
    def call_disabled(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call_disabled


def _wrap_single(function: Any) -> Any:
    @functools.wraps(function)
    def call_disabled(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call_disabled


def skip_marked_code() -> None:
    """Make the compiler, once loaded, skip the marked functions."""
    frames = importlib.import_module(path("dynamo_frames"))
    for recursive, code in _codes.items():
        then = frames.FrameAction.SKIP if recursive else frames.FrameAction.DEFAULT
        frames.set_code_exec_strategy(code, frames.FrameExecStrategy(frames.FrameAction.SKIP, then))
