"""Which lines of a project ran, in a process and in all that it forks."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

from gapless.fixes.proof.edited_lines import own_lines


class LineMap:
    """A byte for each line of `files`, in a file that processes share."""

    def __init__(self, path: str, root: str, files: Sequence[str]) -> None:
        self.offsets: dict[str, tuple[int, int]] = {}
        size = 0
        for file in files:
            try:
                with open(os.path.join(root, file), "rb") as stream:
                    lines = stream.read().count(b"\n") + 2
            except OSError:
                continue
            self.offsets[file] = size, lines
            size += lines
        self._path = path
        self._size = max(size, 1)

    def open(self) -> mmap.mmap:
        """Return the bytes, writable; the file is made if it does not exist."""
        with open(self._path, "a+b") as stream:
            stream.truncate(self._size)
            return mmap.mmap(stream.fileno(), self._size)

    def read(self) -> dict[str, frozenset[int]]:
        """Return the lines that ran, by file."""
        data = self.open()
        return {
            file: frozenset(number for number in range(lines) if data[begin + number])
            for file, (begin, lines) in self.offsets.items()
        }


class LineTracer:
    """Records in `line_map` each line below `root` that runs; a function with no line left is not traced."""

    def __init__(self, line_map: LineMap, root: str) -> None:
        self._bytes = line_map.open()
        self._begins = {os.path.join(root, file): begin for file, (begin, _) in line_map.offsets.items()}
        self._missing: dict[CodeType, set[int] | None] = {}

    def install(self) -> None:
        """Trace this thread and those that it starts."""
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        try:
            missing = self._missing[code]
        except KeyError:
            missing = set(own_lines(code)) if code.co_filename in self._begins else None
            self._missing[code] = missing
        return self._line if missing else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event != "line":
            return self._line
        code, line = frame.f_code, frame.f_lineno
        missing = self._missing[code]
        if missing and line in missing:
            self._bytes[self._begins[code.co_filename] + line] = 1
            missing.discard(line)
        return self._line if missing else None
