"""Whether the running code mentions streams or graphs: then accesses are recorded from the start."""

from __future__ import annotations

import linecache
import os
import re
import sys
from types import FrameType

from gapless.emulation.support import stacks

_GRAPH_PATTERN = re.compile(r"\bCUDAGraph\s*\(|\bmake_graphed_callables\s*\(")
_STREAM_PATTERN = re.compile(r"\bStream\s*\(|\basync_op\s*=\s*True|\b(?:isend|irecv)\s*\(")


def speaks_of_streams() -> bool:
    """Whether a running file of the user's, or a loaded one beside it, creates a stream.

    Accesses before the creation of the first stream would be missed otherwise.
    """
    return _user_code_matches(_STREAM_PATTERN)


def speaks_of_graphs() -> bool:
    """Whether a running file of the user's, or a loaded one beside it, captures a CUDA graph."""
    return _user_code_matches(_GRAPH_PATTERN)


def _user_code_matches(pattern: re.Pattern[str]) -> bool:
    files = {file for file in _running_files() if stacks.library_of(file) == ""}
    folders = {os.path.dirname(file) for file in files}
    near = tuple(os.path.join(folder, "") for folder in folders)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(near) and os.path.dirname(file) in folders:
            files.add(file)
    return any(pattern.search("".join(linecache.getlines(file))) for file in files)


def _running_files() -> set[str]:
    files: set[str] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return files
