"""Role is followed through the source, and where it is."""

from __future__ import annotations

import ast
from typing import Literal, NamedTuple

from gapless.uses.source_files import SourceFile

Role = Literal["value", "compared", "finite", "selection", "count"]
"""Role is followed.

``value``: a number, an array or a list on the CPU; ``compared``: the answer of a comparison; ``finite``: of a
check for NaN; ``selection``: a tensor on the GPU whose size was read; ``count``: its number of elements.
"""
ANY = "*"


class Held(NamedTuple):
    """Role is followed, and under which keys of which containers, the outermost first.

    A key is the text of a constant key, ``#2`` for an element's place, or `ANY`.
    """

    role: Role = "value"
    path: tuple[str, ...] = ()

    def put(self, key: str) -> Held:
        return Held(self.role, (key, *self.path))

    def taken(self) -> Held:
        return Held(self.role, self.path[1:])

    def bare(self) -> Held:
        return Held(self.role)

    def answer(self, role: Role) -> Held:
        """Return the answer of a test; one that is known more exactly stays what it is."""
        return (
            self
            if self.role in ("finite", "count", "selection") and role == "compared"
            else Held(role, self.path)
        )


class At(NamedTuple):
    """A place that a value has reached."""

    file: SourceFile
    node: ast.AST
    hops: int
    held: Held

    def move(self, node: ast.AST, held: Held | None = None) -> At:
        return At(self.file, node, self.hops, held if held is not None else self.held)
