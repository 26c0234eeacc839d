"""Whether the running code mentions streams or graphs: then accesses are recorded from the start."""

from __future__ import annotations

import linecache
import os
import re
import sys
from functools import lru_cache
from types import FrameType

from gapless.emulation.support import stacks

_GRAPH_PATTERN = re.compile(r"\bCUDAGraph\s*\(|\bmake_graphed_callables\s*\(")
_STREAM_PATTERN = re.compile(r"\bStream\s*\(|\basync_op\s*=\s*True|\b(?:isend|irecv)\s*\(")
_searched: dict[tuple[re.Pattern[str], str], tuple[list[str], bool]] = {}
"""Whether a pattern occurs in a file, with the lines in which it was searched."""


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
    files |= _files_beside(
        frozenset(map(os.path.dirname, files)), len(sys.modules), next(reversed(sys.modules))
    )
    return any(_matches(pattern, file) for file in files)


@lru_cache(maxsize=8)
def _files_beside(folders: frozenset[str], modules: int, newest: str) -> frozenset[str]:
    """Return the files in `folders` that are loaded; `modules` and `newest` say when others may be."""
    near = tuple(os.path.join(folder, "") for folder in folders)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return frozenset(
        file
        for file in files
        if isinstance(file, str) and file.startswith(near) and os.path.dirname(file) in folders
    )


def _matches(pattern: re.Pattern[str], file: str) -> bool:
    """Whether `pattern` occurs in `file`; searched once for each version that linecache holds."""
    lines = linecache.getlines(file)
    searched = _searched.get((pattern, file))
    if searched is None or searched[0] is not lines:
        searched = _searched[pattern, file] = lines, pattern.search("".join(lines)) is not None
    return searched[1]


def _running_files() -> set[str]:
    files: set[str] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return files
