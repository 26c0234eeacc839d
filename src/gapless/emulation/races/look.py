"""Whether the code that runs speaks of streams: then the books are kept from the beginning."""

from __future__ import annotations

import linecache
import os
import re
import sys
from types import FrameType

from gapless.emulation.support import stacks

_GRAPHS = re.compile(r"\bCUDAGraph\s*\(|\bmake_graphed_callables\s*\(")
_STREAMS = re.compile(r"\bStream\s*\(|\basync_op\s*=\s*True|\b(?:isend|irecv)\s*\(")


def speaks_of_streams() -> bool:
    """Whether a file of the user's that is running, or one beside it that is loaded, makes a stream.

    What was written before the first stream was made could not be told otherwise.
    """
    return _says(_STREAMS)


def speaks_of_graphs() -> bool:
    """Whether such a file captures a CUDA graph."""
    return _says(_GRAPHS)


def _says(pattern: re.Pattern[str]) -> bool:
    files = {file for file in _running() if stacks.library_of(file) == ""}
    folders = {os.path.dirname(file) for file in files}
    near = tuple(os.path.join(folder, "") for folder in folders)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(near) and os.path.dirname(file) in folders:
            files.add(file)
    return any(pattern.search("".join(linecache.getlines(file))) for file in files)


def _running() -> set[str]:
    found: set[str] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.add(frame.f_code.co_filename)
        frame = frame.f_back
    return found
