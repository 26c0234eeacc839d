"""Show a script's own failure as Python would without Gapless."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from types import TracebackType

from gapless.capture.stopping import chain
from gapless.model import Ending

_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?:\w+\.)*\w+: ")
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
NO_TRITON = (
    "the script's kernels need Triton, which is not installed here: pip install triton (Linux only; no GPU "
    "is needed, because kernels are evaluated on the CPU)"
)

_NO_SUCH_DEVICE = "CUDA error: invalid device ordinal"
SEVERAL = "`gapless check --devices N` sets how many GPUs are emulated; the default is one"
NO_TORCHSCRIPT = (
    "TorchScript runs here as the Python code it was made from, which has no `{}`: remove that call from "
    "what you check (`torch.jit.save` works)"
)


def show(error: BaseException, own_frames: bool = False) -> None:
    """Print the traceback of `error` through `sys.excepthook`, with Gapless's frames if `own_frames`."""
    if not own_frames:
        for link in chain(error):
            link.__traceback__ = without_own_frames(link.__traceback__)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:  # the script's own hook failed; Python falls back likewise
        sys.__excepthook__(type(error), error, error.__traceback__)
    if _without_triton(error) and sys.stderr is not None:
        sys.stderr.write(f"gapless: {NO_TRITON}\n")
    if any(_NO_SUCH_DEVICE in str(link) for link in chain(error)) and sys.stderr is not None:
        sys.stderr.write(f"gapless: {SEVERAL}\n")
    if (wanted := _missing_torchscript_attribute(error)) and sys.stderr is not None:
        sys.stderr.write(f"gapless: {NO_TORCHSCRIPT.format(wanted)}\n")


def _without_triton(error: BaseException) -> bool:
    """Whether an import failed for lack of Triton, however a library words it."""
    wanted = any(isinstance(link, ImportError) and "triton" in str(link).lower() for link in chain(error))
    return wanted and importlib.util.find_spec("triton") is None


def _missing_torchscript_attribute(error: BaseException) -> str:
    """Return the TorchScript attribute that the script used although plain Python runs instead, or ""."""
    emulation = sys.modules.get("gapless.emulation.compiled.torchscript")
    if emulation is None or not isinstance(error, AttributeError):
        return ""
    name = error.name or ""
    return name if emulation.lacks(error.obj, name) else ""


def _is_own(file: str) -> bool:
    return file.startswith(_OWN)


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return `trace` without the frames of Gapless's own files."""
    kept = [link for link in _links(trace) if not _is_own(link.tb_frame.f_code.co_filename)]
    following: TracebackType | None = None
    for link in reversed(kept):
        following = TracebackType(following, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return following


def _links(trace: TracebackType | None) -> list[TracebackType]:
    links = []
    while trace is not None:
        links.append(trace)
        trace = trace.tb_next
    return links


def place(error: BaseException, folder: str) -> str:
    """Return ``file:line`` of the innermost frame in `folder`, else of the outermost frame.

    Packages installed below `folder` do not count as in it.
    """
    frames = traceback.extract_tb(without_own_frames(error.__traceback__))
    mine = [frame for frame in frames if _within(frame.filename, folder)]
    for frame in (*reversed(mine), *frames[:1]):
        file = os.path.relpath(frame.filename, folder) if mine else frame.filename
        return f"{file}:{frame.lineno}"
    return ""


def _within(file: str, folder: str) -> bool:
    return file.startswith(folder + os.sep) and "site-packages" not in file[len(folder) :]


def ending(error: BaseException, where: str = "") -> Ending:
    """Return how a script ended that failed with `error` at the line `where`."""
    links = _links(error.__traceback__)
    innermost = links[-1].tb_frame.f_globals.get("__name__") if links else "os"
    return Ending(
        how="error",
        status=1,
        message=message(error),
        where=where,
        of_environment=not isinstance(error, KeyError) or innermost == "os",
    )


def message(error: BaseException) -> str:
    """Return ``ValueError: message`` in one line."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    lines = [line.rstrip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, SyntaxError):
        return next((line for line in lines if _RAISED.match(line)), lines[-1])
    began = max((n for n, line in enumerate(lines) if _TRACEBACK in line), default=-1)
    if began >= 0:  # another process's or a worker's traceback: its error is what failed
        lines = [line for line in lines[began + 1 :] if not line.startswith(" ")] or lines
    first, more = lines[0], lines[1:]  # later lines are advice or notes
    return f"{first} {more[0].strip()}" if first.endswith(":") and more else first
