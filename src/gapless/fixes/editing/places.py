"""What a rewrite knows of a place that waits, and what it returns."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from gapless.fixes.editing.editable import EditableFile, Refused
from gapless.model.event import Site, WaitedTensor
from gapless.model.finding import Frequency
from gapless.model.fix import Edit, FixLevel
from gapless.model.loader_use import LoaderUse
from gapless.model.use import Span
from gapless.uses.resolving import CallGraph
from gapless.uses.source_files import Project, SourceFile

_FLOATS = ("float", "bfloat", "complex")


class Draft(NamedTuple):
    """What a rewrite proposes: the change in a few words, its edits, and what it may change."""

    title: str
    edits: tuple[Edit, ...]
    level: FixLevel = "exact"


@dataclass
class UserProgram:
    """The user's program: its files, its loaders, and which expressions of it read which tensors."""

    project: Project
    files: Callable[[str], EditableFile]
    """Returns a file by its path, or raises `Refused`."""
    script: str = ""
    loaders: tuple[LoaderUse, ...] = ()
    reads: dict[ast.AST, WaitedTensor | None] = field(default_factory=dict)
    copied_back: set[tuple[str, int, Span | None]] = field(default_factory=set)
    """File, line and span of the expressions that copy to the CPU: some copy to the GPU as well."""


@dataclass
class FixPlace:
    """One expression that waits: `node` in `file`, with its `site` and how often it waits.

    `site` stands for all sites at this expression: it has no `tensors` if they differ. `bytes` is the
    largest copy.
    """

    program: UserProgram
    file: EditableFile
    node: ast.AST
    site: Site
    frequency: Frequency
    bytes: int = 0

    @property
    def tensor(self) -> WaitedTensor:
        """What is waited for.

        Raises:
            Refused: it is not known.
        """
        if not self.site.tensors:
            raise Refused("the tensor's dtype is not known, or changes")
        return self.site.tensors[0]

    @property
    def calls(self) -> CallGraph:
        return CallGraph(self.program.project, ())

    def call(self, *names: str) -> ast.Call:
        """Return the call at the place.

        Raises:
            Refused: it is no call of a function with one of these names.
        """
        node = self.node
        if not isinstance(node, ast.Call):
            raise Refused("it is no call")
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if names and name not in names:
            raise Refused(f"`{name or self.file.source.text(node)}` is called")
        return node


def is_whole(tensor: WaitedTensor) -> bool:
    """Whether it holds whole numbers or truths."""
    return not tensor.dtype.startswith(_FLOATS)


def keyword_of(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument; None if `call` has none of this name."""
    return next((each.value for each in call.keywords if each.arg == name), None)


def has_open_options(call: ast.Call) -> bool:
    """Whether arguments come out of a list or dict, so that any may be among them."""
    return any(each.arg is None for each in call.keywords) or any(
        isinstance(each, ast.Starred) for each in call.args
    )


def torch_name(place: FixPlace) -> str:
    """Return the name under which the file knows torch.

    Raises:
        Refused: it does not import torch.
    """
    source = place.file.source
    scopes = (source.tree, source.scope(place.node))
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import) and source.scope(node) in scopes:
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                if source.imports.get(name) == ("torch", "") and not _is_bound(source, name):
                    return name
    raise Refused("the file does not import torch")


def _is_bound(file: SourceFile, name: str) -> bool:
    """Whether `name` also stands for something that no import of the file makes."""
    return (
        name in file.functions
        or name in file.classes
        or any(
            (isinstance(node, ast.arg) and node.arg == name)
            or (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
            for node in ast.walk(file.tree)
        )
    )


def qualified_name(place: FixPlace, function: ast.expr) -> str:
    """Return the full name of what is called, by the file's imports: ``torch.nn.functional.one_hot``."""
    parts: list[str] = []
    node = function
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    module, inner = place.file.source.imports.get(node.id, ("", ""))
    return ".".join(filter(None, [module, inner, *reversed(parts)])) if module else ""


def is_module_call(place: FixPlace, call: ast.Call, *names: str) -> bool:
    """Whether one of torch's functions with these names is called as ``torch.name(…)``."""
    return isinstance(call.func, ast.Attribute) and qualified_name(place, call.func) in {
        f"torch.{name}" for name in names
    }


def import_ops(place: FixPlace) -> tuple[Edit, ...]:
    """Return the edit that imports `gapless.ops` as ``ops``; none if the file has it.

    Raises:
        Refused: the file calls something else ``ops``.
    """
    source = place.file.source
    if source.imports.get("ops", ("gapless", "ops")) != ("gapless", "ops") or _is_bound(source, "ops"):
        raise Refused("the file calls something else `ops`")
    return place.file.import_line("from gapless import ops")
