"""A watch over a group of processes: it ends them when this process has ended, however that was."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SHELL = "/bin/sh"
_WATCH = "read nothing; kill -9 0"
"""Waits for the end of a pipe of which this process alone holds the other end; then ends its own group."""


@contextmanager
def guarded(group: int) -> Iterator[None]:
    """See to it that the processes of `group` do not outlive this one, as long as the block lasts.

    A group is more than what a process has started: workers that are spawned are not told when it is killed,
    and may wait for each other for ever. The watch is a process of its own, so that nothing that happens
    here can keep it from doing its work; started without a copy of this process's memory.
    """
    reader, writer = os.pipe()
    try:
        watch = _started(reader, group)
    finally:
        os.close(reader)
    try:
        yield
    finally:
        if watch:
            with suppress(ProcessLookupError):
                os.kill(watch, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(watch, 0)
        os.close(writer)


def _started(reader: int, group: int) -> int:
    """The process that watches; 0 where there can be none."""
    nowhere = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    actions = [(os.POSIX_SPAWN_DUP2, reader, 0), *nowhere]
    with suppress(OSError):
        return os.posix_spawn(_SHELL, [_SHELL, "-c", _WATCH], {}, file_actions=actions, setpgroup=group)
    return 0
