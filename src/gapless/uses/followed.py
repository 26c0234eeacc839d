"""A value followed through the source, the place where it has come to, and the walk that follows it."""

from __future__ import annotations

import ast
from typing import Literal, NamedTuple, Protocol

from gapless.model.use import UseKind
from gapless.uses.resolving import CallGraph
from gapless.uses.source_files import SourceFile

Role = Literal["value", "copy", "compared", "finite", "selection", "count", "text"]
"""Kinds of followed values.

``value``: a number, an array or a list on the CPU; ``copy``: a tensor that was copied there; ``compared``:
the answer of a comparison; ``finite``: of a check for NaN; ``selection``: a tensor on the GPU whose size was
read; ``count``: its number of elements; ``text``: what shows a number.
"""
ANY = "*"


class FollowedValue(NamedTuple):
    """The kind of the followed value, and the keys of the containers that it is in, the outermost first.

    A key is the text of a constant key, ``#2`` for an element's place, or `ANY`.
    """

    role: Role = "value"
    path: tuple[str, ...] = ()

    def put(self, key: str) -> FollowedValue:
        """Return the value in one more container, under `key`."""
        return FollowedValue(self.role, (key, *self.path))

    def take_out(self) -> FollowedValue:
        """Return the value without its outermost container."""
        return FollowedValue(self.role, self.path[1:])

    def element(self) -> FollowedValue:
        """Return what a loop's turn gets of the container."""
        return self.take_out() if self.path else self

    @property
    def has_keys(self) -> bool:
        """Whether the value is in a dict, under a key that is known."""
        return bool(self.path) and self.path[0] != ANY and not self.path[0].startswith("#")

    def without_keys(self) -> FollowedValue:
        """Return the value outside all containers."""
        return FollowedValue(self.role)

    def as_text(self) -> FollowedValue:
        """Return a text that shows the value."""
        return FollowedValue("text")

    def as_number(self) -> FollowedValue:
        """Return the number that is made of the value, outside all containers."""
        return FollowedValue("value" if self.role in ("text", "copy") else self.role)

    def answer(self, role: Role) -> FollowedValue:
        """Return the answer of a test; one that is known more exactly stays what it is."""
        return (
            self
            if self.role in ("finite", "count", "selection") and role == "compared"
            else FollowedValue(role, self.path)
        )


def key_text(node: ast.AST) -> str:
    """Return the key that the subscript `node` is; `ANY` if it is not constant."""
    return str(node.value) if isinstance(node, ast.Constant) else ANY


def fits_key(key: str, node: ast.AST) -> bool:
    """Whether the element under `key` may be the one that the subscript `node` takes."""
    if key == ANY or not isinstance(node, (ast.Constant, ast.UnaryOp)):
        return True
    if key.startswith("#"):
        return not isinstance(node, ast.Constant) or key == f"#{node.value!r}"
    return key == key_text(node)


class ReachedPlace(NamedTuple):
    """A place that a value has reached."""

    file: SourceFile
    node: ast.AST
    hops: int
    held: FollowedValue

    def move(self, node: ast.AST, held: FollowedValue | None = None) -> ReachedPlace:
        """Return the place `node` in the same file, as far from the start as this one."""
        return ReachedPlace(self.file, node, self.hops, held if held is not None else self.held)


class ValueWalk(Protocol):
    """The walk over the source, for those that say where a value goes next: `flow.Flow`."""

    calls: CallGraph

    def go(self, at: ReachedPlace) -> None:
        """Follow the value from `at` on."""

    def add(self, at: ReachedPlace, kind: UseKind, node: ast.AST | None = None) -> None:
        """Note a use at `node`, or where the value is."""

    def keep(self, at: ReachedPlace, kind: UseKind, node: ast.AST | None = None) -> None:
        """Note that the value may be used at `node`, if it is used nowhere else."""

    def put(self, at: ReachedPlace, container: ast.AST, binding: ast.AST) -> None:
        """Follow a value that `binding` puts into `container`."""

    def enter(
        self, at: ReachedPlace, call: ast.Call, parameter: str, file: SourceFile, function: ast.AST
    ) -> None:
        """Follow an argument of `call` into the function that it reaches."""
