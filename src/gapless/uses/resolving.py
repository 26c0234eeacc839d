"""Which functions a call reaches, and which calls reach a function."""

from __future__ import annotations

import ast
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gapless.uses import callees, unseen
from gapless.uses.meaning import attribute_values, values_of
from gapless.uses.source_files import FUNCTIONS, Function, Project, SourceFile, last_name

_MAX_CALLERS = 12
"""Calls of one function that are followed."""
_MAX_DEPTH = 4
"""Bases, imports and assignments that a name is looked up through."""


class Frame(NamedTuple):
    """A frame of a recorded stack: its file and the expression that was running; None if unknown."""

    file: SourceFile
    node: ast.AST | None


class Callee(NamedTuple):
    """A function that a call reaches; `bound` says that its first parameter is the object."""

    file: SourceFile
    function: ast.FunctionDef | ast.AsyncFunctionDef
    bound: bool


class CallGraph:
    """The calls between the functions of a project, and those of one recorded stack."""

    def __init__(self, project: Project, frames: Sequence[Frame | None]) -> None:
        self._project = project
        self._frames = [frame for frame in frames if frame is not None]
        self._callers: dict[Function, Frame | None] = {}
        self._finite: dict[ast.AST, bool] = {}
        self._callees: dict[ast.Call, list[Callee]] = {}
        for frame, caller in itertools.pairwise(frames):
            if frame is not None and frame.node is not None:
                scope = frame.file.scope(frame.node)
                if isinstance(scope, FUNCTIONS):
                    self._callers.setdefault(scope, caller)

    def is_script(self, file: SourceFile) -> bool:
        """Whether `file` is the script that runs, whose variables no other file reads."""
        stem = os.path.splitext(os.path.basename(file.path))[0]
        outermost = self._frames[-1] if self._frames else Frame(file, None)
        if outermost.file is not file or outermost.node is None:
            return False
        return outermost.file.scope(outermost.node) is file.tree and not any(
            module.rpartition(".")[2] == stem or name == stem
            for other in self._project.files.values()
            if other is not None and other is not file
            for module, name in other.imports.values()
        )

    def reads_clock(self, file: SourceFile) -> bool:
        """Whether `file` or a file of the recorded stack reads a clock."""
        return any(map(unseen.reads_clock, {file, *(frame.file for frame in self._frames)}))

    def is_recorded(self, function: Function) -> bool:
        """Whether the recorded stack says who called `function`."""
        return function in self._callers

    def recorded_caller(self, function: Function) -> Frame | None:
        """Return the recorded call of `function`; None if a library called it or its line is unknown."""
        return self._callers.get(function)

    def callers(
        self, file: SourceFile, function: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> list[Frame] | None:
        """Return the calls of `function` in the files read so far; None if there are too many."""
        calls: list[Frame] = []
        for other in [each for each in self._project.files.values() if each is not None]:
            for call in other.calls.get(function.name, ()):
                if any(callee.function is function for callee in self.callees(other, call)):
                    calls.append(Frame(other, call))
        return calls if len(calls) <= _MAX_CALLERS else None

    def callees(self, file: SourceFile, call: ast.Call) -> list[Callee]:
        """Return the project's functions that `call` may reach; empty if none is known."""
        if call not in self._callees:
            self._callees[call] = self._find_callees(file, call)
        return self._callees[call]

    def _find_callees(self, file: SourceFile, call: ast.Call) -> list[Callee]:
        function = call.func
        if isinstance(function, ast.Name):
            return self._by_name(file, function.id, call)
        if not isinstance(function, ast.Attribute):
            return []
        owner = function.value
        if isinstance(owner, ast.Name) and owner.id in ("self", "cls"):
            around = file.around(call, ast.ClassDef)
            return self._methods(file, around, function.attr) if isinstance(around, ast.ClassDef) else []
        if (
            isinstance(owner, ast.Name)
            and (imported := self._project.resolve_import(file, owner.id)) is not None
        ):
            module, name = imported
            if not name:
                return self._by_name(module, function.attr, None)
            klass = module.classes.get(name)
            return self._methods(module, klass, function.attr) if klass is not None else []
        return [
            each
            for where, klass in self._classes_of(file, owner)
            for each in self._methods(where, klass, function.attr)
        ]

    def _by_name(self, file: SourceFile, name: str, at: ast.AST | None, depth: int = 0) -> list[Callee]:
        """Return the function of this name that is visible at `at` in `file`."""
        visible = []
        around = set(file.chain(at)) if at is not None else {file.tree}
        for function in file.functions.get(name, ()):
            parent = file.parents[function]
            if isinstance(parent, ast.ClassDef):
                continue
            if file.scope(function) in around or file.scope(function) is file.tree:
                visible.append(Callee(file, function, False))
        if visible:
            return visible[-2:]
        if name in file.classes:
            return self._methods(file, file.classes[name], "__init__")
        if (
            depth < _MAX_DEPTH
            and (imported := self._project.resolve_import(file, name)) is not None
            and imported[1]
        ):
            return self._by_name(imported[0], imported[1], None, depth + 1)
        return []

    def class_of_call(self, file: SourceFile, call: ast.Call) -> tuple[SourceFile, ast.ClassDef] | None:
        """Return the class that `call` makes an object of."""
        function = call.func
        if isinstance(function, ast.Name):
            return self._find_class(file, function.id)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            imported = self._project.resolve_import(file, function.value.id)
            if imported is not None and not imported[1]:
                return self._find_class(imported[0], function.attr)
        return None

    def _find_class(
        self, file: SourceFile, name: str, depth: int = 0
    ) -> tuple[SourceFile, ast.ClassDef] | None:
        """Return the class of this name that `file` defines or imports."""
        if name in file.classes:
            return file, file.classes[name]
        imported = self._project.resolve_import(file, name) if depth < _MAX_DEPTH else None
        return self._find_class(*imported, depth + 1) if imported is not None and imported[1] else None

    def _classes_of(self, file: SourceFile, owner: ast.expr) -> Iterator[tuple[SourceFile, ast.ClassDef]]:
        """Yield the classes that `owner` is an object of, by what is assigned to it."""
        values: list[ast.expr] = []
        if isinstance(owner, ast.Name):
            values = values_of(file, owner)
        elif isinstance(owner, ast.Attribute):
            values = attribute_values(file, owner)
        for value in values:
            if isinstance(value, ast.Call) and (klass := self.class_of_call(file, value)) is not None:
                yield klass

    def _methods(self, file: SourceFile, klass: ast.ClassDef, name: str, depth: int = 0) -> list[Callee]:
        """Return the method of `klass`, or of the first of its bases that has one."""
        for each in klass.body:
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name == name:
                static = any(last_name(decorator) == "staticmethod" for decorator in each.decorator_list)
                return [Callee(file, each, not static)]
        for base in klass.bases if depth < _MAX_DEPTH else ():
            if not isinstance(base, ast.Name):
                continue
            if base.id in file.classes and file.classes[base.id] is not klass:
                methods = self._methods(file, file.classes[base.id], name, depth + 1)
            elif (imported := self._project.resolve_import(file, base.id)) is not None and imported[
                1
            ] in imported[0].classes:
                methods = self._methods(imported[0], imported[0].classes[imported[1]], name, depth + 1)
            else:
                continue
            if methods:
                return methods
        return []

    def is_finiteness(self, file: SourceFile, node: ast.AST, depth: int = 0) -> bool:
        """Whether `node` was made by a check for NaN or infinity, also through names and callbacks."""
        if depth > _MAX_DEPTH:
            return False
        if node not in self._finite:
            self._finite[node] = False  # while it is looked at: functions call each other
            self._finite[node] = self._looks_like_finiteness(file, node, depth)
        return self._finite[node]

    def checked_text(self, file: SourceFile, node: ast.AST, depth: int = 0) -> str:
        """Return the text of what a check for NaN or infinity in `node` looks at; "" if it is unknown."""
        for each in ast.walk(node) if depth <= _MAX_DEPTH else ():
            if isinstance(each, ast.Call) and self._is_check(file, each, depth):
                named = last_name(each.func) in callees.FINITE
                owner = each.func.value if named and isinstance(each.func, ast.Attribute) else None
                subject = each.args[0] if len(each.args) == 1 else owner if not each.args else None
                return file.text(subject) if subject is not None else ""
        for each in ast.walk(node) if depth <= _MAX_DEPTH else ():
            if isinstance(each, ast.Name):
                texts = (self.checked_text(file, value, depth + 1) for value in values_of(file, each))
                if text := next(filter(None, texts), ""):
                    return text
        return ""

    def _is_check(self, file: SourceFile, call: ast.Call, depth: int) -> bool:
        """Whether the function that is called checks its argument for NaN or infinity."""
        passed = self.argument_of(file, call.func) if isinstance(call.func, ast.Name) else None
        names = {last_name(call.func), last_name(passed.node) if passed and passed.node else ""}
        return bool(names & callees.FINITE) or self._returns_finiteness(file, call, depth)

    def _looks_like_finiteness(self, file: SourceFile, node: ast.AST, depth: int) -> bool:
        for each in ast.walk(node):
            if isinstance(each, (ast.Name, ast.Attribute)) and last_name(each) in callees.FINITE:
                return True
            if (
                isinstance(each, ast.Compare)
                and len(each.comparators) == 1
                and isinstance(each.ops[0], ast.NotEq)
            ) and ast.dump(each.left) == ast.dump(each.comparators[0]):
                return True  # only NaN differs from itself
            if isinstance(each, ast.Call) and self._returns_finiteness(file, each, depth):
                return True
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                if any(
                    self.is_finiteness(file, value, depth + 1)
                    for value in values_of(file, each)
                    if not _holds(value, each)
                ):
                    return True
                argument = self.argument_of(file, each)
                if argument is not None and self.is_finiteness(
                    argument.file, argument.node or ast.Pass(), depth + 1
                ):
                    return True
        return False

    def _returns_finiteness(self, file: SourceFile, call: ast.Call, depth: int) -> bool:
        for callee in self.callees(file, call):
            returned = [
                each.value
                for each in ast.walk(callee.function)
                if isinstance(each, ast.Return) and each.value
            ]
            if any(self.is_finiteness(callee.file, value, depth + 1) for value in returned):
                return True
        return False

    def argument_of(self, file: SourceFile, name: ast.Name) -> Frame | None:
        """Return what the recorded caller passed for the parameter `name`."""
        function = file.scope(name)
        caller = self._callers.get(function) if isinstance(function, FUNCTIONS) else None
        if caller is None or not isinstance(caller.node, ast.Call) or not isinstance(function, FUNCTIONS):
            return None
        parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if parameters[:1] in (["self"], ["cls"]):
            parameters = parameters[1:]
        for keyword in caller.node.keywords:
            if keyword.arg == name.id:
                return Frame(caller.file, keyword.value)
        place = parameters.index(name.id) if name.id in parameters else len(caller.node.args)
        if place < len(caller.node.args) and not any(
            isinstance(each, ast.Starred) for each in caller.node.args
        ):
            return Frame(caller.file, caller.node.args[place])
        return None


def _holds(node: ast.AST, part: ast.AST) -> bool:
    return any(each is part for each in ast.walk(node))
