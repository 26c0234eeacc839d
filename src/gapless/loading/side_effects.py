"""Refuse what would outlive a process: writing files, connecting, starting programs."""

from __future__ import annotations

import os
import sys
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""Flags of a file that is not only read."""
_REFUSED = frozenset(
    {
        *("os.chmod", "os.chown", "os.kill", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir"),
        *("os.symlink", "os.truncate", "os.utime", "os.setxattr", "os.exec", "os.spawn", "os.posix_spawn"),
        *("os.system", "subprocess.Popen", "socket.connect", "socket.sendto", "sqlite3.connect"),
        *("shutil.copyfile", "shutil.move", "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp"),
    }
)
"""Events that Python reports before it does something that others notice."""


def refuse_side_effects() -> None:
    """Make writing, connecting and starting programs fail from now on, in this process.

    It cannot be undone: only for a process that ends afterwards. The error is `PermissionError`, which
    Python's import of a module ignores when it cannot write its cache.
    """

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _REFUSED or (event == "open" and _is_written(*arguments)):
            raise PermissionError(f"{event} is refused while something is only tried")

    sys.addaudithook(look)


def _is_written(path: Any, mode: Any, flags: Any) -> bool:
    """Whether opening `path` is for more than reading it."""
    return bool(flags & _WRITING) and not str(path).startswith("/dev/")
