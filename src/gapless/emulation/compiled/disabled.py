"""`torch.compiler.disable` where the compiler is not loaded yet: the mark is made, and seconds are saved."""

from __future__ import annotations

import functools
import importlib
from types import CodeType, FunctionType, MethodType
from typing import Any

from gapless.torch_internals import path

_codes: dict[bool, CodeType] = {}
"""The code of the wrappers: true for those that keep all they call out of the compiler."""


def disable(
    function: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True
) -> Any:
    """`function`, with the marks by which the compiler knows later that it is to leave it alone."""
    if function is None:
        return functools.partial(disable, recursive=recursive, reason=reason, wrapping=wrapping)
    if not isinstance(function, FunctionType | MethodType):  # modules and classes become something of torch's
        real = importlib.import_module(path("dynamo")).disable
        return real(function, recursive, reason=reason, wrapping=wrapping)
    made = _whole(function) if recursive else _alone(function)
    _codes[recursive] = made.__code__
    made._torchdynamo_disable = True
    made._torchdynamo_disable_msg = reason
    made._torchdynamo_disable_recursive = recursive
    made._torchdynamo_orig_callable = function
    made._torchdynamo_wrapper_id = id(made)
    return made


# The compiler goes by the code of a wrapper, so that the two kinds need one each.


def _whole(function: Any) -> Any:
    @functools.wraps(function)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return disabled


def _alone(function: Any) -> Any:
    @functools.wraps(function)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return disabled


def keep_out() -> None:
    """Have the compiler, which is loaded by now, leave alone what was marked."""
    frames = importlib.import_module(path("dynamo_frames"))
    for recursive, code in _codes.items():
        then = frames.FrameAction.SKIP if recursive else frames.FrameAction.DEFAULT
        frames.set_code_exec_strategy(code, frames.FrameExecStrategy(frames.FrameAction.SKIP, then))
