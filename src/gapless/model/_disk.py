"""Files that Gapless saves: written whole or not at all, read with one clear error."""

from __future__ import annotations

import os
from pathlib import Path

from gapless.errors import UnreadableInput


def write_whole(data: bytes, path: str | os.PathLike[str]) -> None:
    """Write `data` to `path`, whole or not at all.

    Raises:
        UnreadableInput: `path` cannot be written.
    """
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UnreadableInput(f"cannot write {target}: {error.strerror or error}") from None


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """What `path` holds.

    Raises:
        UnreadableInput: `path` cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror or error}") from None
