"""`Fallback`: what a library runs instead of a package that is not installed."""

from __future__ import annotations

import msgspec

from gapless.model.source import SourceLine


class Fallback(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The code of `library` that runs because `package` is not installed.

    `functions` replace the package's, wherever in the library they are defined; `lines` are the first and
    last lines of parts of `file`.

    >>> Fallback(library="lib", package="apex", file="/x/lib/norm.py", lines=((10, 14),)).runs(
    ...     SourceLine("/x/lib/norm.py", 12, "norm", "", "lib"))
    True
    """

    library: str
    package: str
    file: str
    functions: tuple[str, ...] = ()
    lines: tuple[tuple[int, int], ...] = ()

    def runs(self, frame: SourceLine) -> bool:
        """Whether `frame` is in this code."""
        if frame.file == self.file and any(first <= frame.line <= last for first, last in self.lines):
            return True
        return frame.library == self.library and frame.function.rpartition(".")[2] in self.functions
