"""Report failures of the user's own code, with only the user's frames."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from gapless.errors import GaplessError

_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class UserCodeFailed(GaplessError):
    """The compared code or its inputs raised; the text ends with the traceback of the user's code."""


def failure_of(action: str, error: BaseException) -> UserCodeFailed:
    """Return the error saying that `action` raised `error`, without Gapless's own frames."""
    trace = _without_own_frames(error.__traceback__)
    lines = traceback.format_exception(type(error), error, trace)
    return UserCodeFailed(f"{action} raises {one_line(error)}\n{''.join(lines).rstrip()}")


def one_line(error: BaseException) -> str:
    """Return ``ValueError: message`` in one line."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return first if len(first) <= 200 else f"{first[:197]}..."


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    user_frames = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((_PACKAGE_FOLDER, "<frozen")):
            user_frames.append(trace)
        trace = trace.tb_next
    following: TracebackType | None = None
    for frame in reversed(user_frames):
        following = TracebackType(following, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return following


_NO_GPU_WORDS = ("CUDA", "NVIDIA", "cuda", "accelerator device", "dummy base class")
"""Words in torch's messages that there is no GPU."""


def needs_gpu(error: BaseException) -> bool:
    """Whether `error` is torch's error that there is no GPU."""
    text = str(error)
    if isinstance(error, AttributeError):  # torch.cuda.set_device, where torch was built without CUDA
        return "torch._C" in text and "'_cuda" in text
    return isinstance(error, (AssertionError, RuntimeError)) and any(word in text for word in _NO_GPU_WORDS)
