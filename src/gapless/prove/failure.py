"""The user's own code failing, told with the frames that are theirs."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from gapless.errors import GaplessError

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Failed(GaplessError):
    """What was to be compared, or its inputs, raised. The text ends with the traceback of the user's code."""


def failed(what: str, error: BaseException) -> Failed:
    """`Failed`, saying that `what` raised `error`, without Gapless's own frames."""
    trace = _without_own(error.__traceback__)
    lines = traceback.format_exception(type(error), error, trace)
    return Failed(f"{what} raises {one_line(error)}\n{''.join(lines).rstrip()}")


def one_line(error: BaseException) -> str:
    """``ValueError: what it says``, in one line."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return first if len(first) <= 200 else f"{first[:197]}..."


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((_OWN, "<frozen")):
            kept.append(trace)
        trace = trace.tb_next
    following: TracebackType | None = None
    for one in reversed(kept):
        following = TracebackType(following, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return following


_MISSING = ("CUDA", "NVIDIA", "cuda", "accelerator device", "dummy base class")


def needs_gpu(error: BaseException) -> bool:
    """Whether `error` is torch's complaint that there is no GPU."""
    text = str(error)
    if isinstance(error, AttributeError):  # torch.cuda.set_device, where torch was built without CUDA
        return "torch._C" in text and "'_cuda" in text
    return isinstance(error, (AssertionError, RuntimeError)) and any(word in text for word in _MISSING)
