"""In a copy of a project: keep what the script writes away from the files that the copy links to."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from gapless.fixes.proof.project import COPIES_PREFIX

_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = {
    "open": (0,), "os.mkdir": (0,), "os.rmdir": (0,), "os.remove": (0,), "os.rename": (0, 1),
    "os.link": (1,), "os.symlink": (1,), "os.truncate": (0,), "shutil.copyfile": (1,), "shutil.rmtree": (0,),
    "shutil.move": (0, 1), "sqlite3.connect": (0,),
}  # fmt: skip
"""Audit events that change files, with the positions of the paths that are changed."""


class LinkGuard:
    """Replaces links of the copy `root` by copies when they are written to; `original` is never written to.

    `outside` collects the files elsewhere that the script wrote.
    """

    def __init__(self, root: str, original: str) -> None:
        self._root = Path(root)
        self._original = Path(original)
        self._busy = False
        self.outside: dict[str, None] = {}

    def install(self, record_checkpoint: Callable[[str, object], None]) -> None:
        """Watch all writes of this process and of processes that it forks, until they end.

        `record_checkpoint` gets what `torch.save` writes, with the name of the file ("" of none).
        """
        import torch

        sys.addaudithook(self._audit)
        real = torch.save

        @wraps(real)
        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, str | os.PathLike):  # written by C++, which no audit hook sees
                self.prepare(os.fspath(f))
            name = getattr(f, "name", f)
            record_checkpoint(os.path.basename(name) if isinstance(name, str | os.PathLike) else "", obj)
            real(obj, f, *args, **kwargs)

        torch.save = save

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        positions = _EVENTS.get(event)
        if positions is None or self._busy:
            return
        if event == "open" and not _opens_for_writing(args):
            return
        for position in positions:
            path = args[position]
            if isinstance(path, str | bytes | os.PathLike):
                self.prepare(os.fsdecode(path))

    def prepare(self, path: str) -> None:
        """Make `path` writable without an effect on the project.

        Raises:
            PermissionError: it is in the project itself.
        """
        self._busy = True
        try:
            place = Path(os.path.abspath(path))
            if place.is_relative_to(self._root):
                self._detach(place)
            elif place.is_relative_to(self._original) and not self._is_beside_copy(place):
                raise PermissionError(f"a proof does not write into the project: {place}")
            elif place.is_file() and not str(place).startswith(("/dev/", "/proc/")):
                self.outside.setdefault(str(place))
        finally:
            self._busy = False

    def _is_beside_copy(self, place: Path) -> bool:
        """Whether `place` is in the folder for copies, which may lie in the project."""
        inner = place.relative_to(self._original).parts
        return any(part.startswith(COPIES_PREFIX) for part in inner)

    def _detach(self, place: Path) -> None:
        """Replace links on the way to `place`: folders by folders of links, the file by a copy."""
        at = self._root
        for part in place.relative_to(self._root).parts:
            at /= part
            if not at.is_symlink():
                continue
            target = at.resolve()
            if not target.is_relative_to(self._original):
                return  # the project's own link to data elsewhere
            at.unlink()
            if target.is_dir():
                at.mkdir()
                for entry in target.iterdir():
                    (at / entry.name).symlink_to(entry)
            else:
                with suppress(OSError):
                    shutil.copy2(target, at)


def _opens_for_writing(args: tuple[Any, ...]) -> bool:
    _, mode, flags = args
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(isinstance(flags, int) and flags & _WRITING_FLAGS)
