"""`annotate`: label every statement of a user's function in profiles, without editing it."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import profiler as _profiler

from gapless.errors import UsageError
from gapless.torch_internals import place, profiler_enabled

_ENABLED = "__gapless_profiling__"
_RANGE = "__gapless_range__"
_MAX_CODE_LENGTH = 100
"""Characters of a statement's code that are kept in its label."""

_QUIET = (ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_SUSPENDING = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
_BODIES = ("body", "orelse", "finalbody")


def annotate(*targets: Any) -> Annotation:
    """Give each statement of `targets` a range of its own in profiles, named by its source line.

    A range ``losses.py:42 dice_loss | score = score[mask]`` then surrounds the operators of that line, in
    Perfetto and in ``gapless trace``, which uses these names where no Python stacks were recorded, and for
    the exact line where stacks only name the function.

    Args:
        targets: functions, methods, classes, modules, or objects (a metric, a loss, a layer). Of classes and
            objects all methods that their class and its bases define, except those of Python and of
            ``torch``; of modules all functions and classes that they define.

    The functions are changed in place, wherever they were imported to, until the block ends or ``undo()`` is
    called. While no profiler runs, each call costs a fraction of a microsecond more.

    Example::

        with gapless.annotate(dice_loss, metrics["accuracy"]), torch.profiler.profile() as profile:
            train_step()

    Raises:
        UsageError: a target has no Python source to label.
    """
    if not targets:
        raise UsageError("annotate what? gapless.annotate(loss_function) or gapless.annotate(metric)")
    annotation = Annotation()
    try:
        for target in targets:
            annotation._add(target)
    except BaseException:
        annotation.undo()
        raise
    return annotation


class Annotation:
    """Functions whose statements are labelled until the block ends or `undo` is called; `names` lists
    them."""

    def __init__(self) -> None:
        self._before: list[tuple[types.FunctionType, types.CodeType]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The functions, as ``module.qualified.name``."""
        return tuple(f"{function.__module__}.{function.__qualname__}" for function, _ in self._before)

    def undo(self) -> None:
        """Give the functions back their own code. Undoing twice does nothing."""
        while self._before:
            function, code = self._before.pop()
            function.__code__ = code
            _labelled.discard(function)

    def __enter__(self) -> Annotation:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise UsageError(
            "gapless.annotate is not a decorator: it changes the function in place; call "
            "gapless.annotate(function) after the definition"
        )

    def _add(self, target: Any) -> None:
        functions = list(dict.fromkeys(_find_functions(target)))
        if not functions:
            raise UsageError(f"annotate: {_describe(target)} defines no Python functions to label")
        reasons = []
        for function in functions:
            if function in _labelled:
                continue
            code = function.__code__
            try:
                function.__code__ = _with_labels(function)
            except _NoSource as reason:
                reasons.append(f"{function.__qualname__} ({reason})")
                continue
            function.__globals__[_ENABLED] = _profiling
            function.__globals__[_RANGE] = _profiler.record_function
            _labelled.add(function)
            self._before.append((function, code))
        if reasons and len(reasons) == len(functions):
            raise UsageError(
                f"annotate: nothing in {_describe(target)} can be labelled: {'; '.join(reasons)}"
            )


class _NoSource(Exception):
    """The reason why a function cannot be labelled."""


_labelled: set[types.FunctionType] = set()

_METHODS = (
    types.FunctionType,
    property,
    staticmethod,
    classmethod,
    functools.cached_property,
    functools.partialmethod,
)
_WORKING_METHODS = frozenset(
    {"__call__", "__getitem__", "__iter__", "__next__", "__enter__", "__exit__", "__len__"}
)
_SOMEWHERE = place("profiler_somewhere")


def _profiling() -> bool:
    """Whether a profiler is recording, in this thread or in all."""
    if torch.compiler.is_compiling():  # ranges would break the graph, and say nothing of fused operators
        return False
    return getattr(*_SOMEWHERE) or profiler_enabled()


# What is labelled ------------------------------------------------------------------------------------------


def _find_functions(target: Any) -> Iterator[types.FunctionType]:
    """Yield the Python functions of a target."""
    if isinstance(target, types.ModuleType):
        members = [
            member
            for member in vars(target).values()
            if getattr(member, "__module__", None) == target.__name__
        ]
        parts: list[Any] = [member for member in members if isinstance(member, type | types.FunctionType)]
    elif isinstance(target, type):
        parts = [method for base in target.__mro__ if not _is_foundation(base) for method in _methods(base)]
    elif isinstance(target, property):
        parts = [accessor for accessor in (target.fget, target.fset, target.fdel) if accessor is not None]
    elif isinstance(target, functools.cached_property | functools.partial | functools.partialmethod):
        parts = [target.func]
    elif isinstance(target, types.MethodType | staticmethod | classmethod):
        parts = [target.__func__]
    else:
        function = inspect.unwrap(target) if callable(target) else None
        if isinstance(function, types.FunctionType):
            yield function
            return
        parts = [] if isinstance(target, types.BuiltinFunctionType) else [type(target)]
    for part in parts:
        yield from _find_functions(part)


def _methods(base: type) -> list[Any]:
    """Return the methods that a class defines itself; of Python's protocols only those that do work."""
    return [
        value
        for name, value in vars(base).items()
        if isinstance(value, _METHODS) and (name in _WORKING_METHODS or not name.startswith("__"))
    ]


def _is_foundation(base: type) -> bool:
    """Whether a class belongs to Python or torch, so that labels in it would say nothing about a user's
    line."""
    module = base.__module__.partition(".")[0]
    return (
        module in ("torch", "typing", "abc", "collections", "functools") or module in sys.builtin_module_names
    )


def _describe(target: Any) -> str:
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    return str(name) if name else f"a {type(target).__name__}"


# How -------------------------------------------------------------------------------------------------------


def _with_labels(function: types.FunctionType) -> types.CodeType:
    """Return the code of `function` with a label around each statement, used only while a profiler runs."""
    code = function.__code__
    source = _source(function)
    definition = _definition(source.tree, code)
    if definition is None:
        raise _NoSource("its source is not in the file: it was generated, or the file has changed since")
    labelled = _Labels(source, function.__qualname__.replace(".<locals>", "")).function(definition)
    return _compile(labelled, function, source)


@dataclass(frozen=True)
class _Source:
    file: str
    shown: str
    lines: list[str]
    tree: ast.Module


def _source(function: types.FunctionType) -> _Source:
    file = function.__code__.co_filename
    linecache.checkcache(file)
    lines = linecache.getlines(file, function.__globals__)
    if not lines:
        raise _NoSource(f"{file} cannot be read")
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        raise _NoSource(f"{file} has changed since it was imported") from None
    return _Source(file, _profile_path(file), lines, tree)


def _profile_path(file: str) -> str:
    """Return the path as profiles write it: relative to the import folder or the working directory."""
    path = os.path.abspath(file)
    folders = [folder for folder in (*sys.path, os.getcwd()) if folder]
    inside = [
        folder for folder in map(os.path.abspath, folders) if path.startswith(folder.rstrip(os.sep) + os.sep)
    ]
    return os.path.relpath(path, max(inside, key=len)).replace(os.sep, "/") if inside else path


def _definition(tree: ast.AST, code: types.CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the definition of `code` in `tree`; Python counts the first decorator as its first line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


class _Labels:
    """Adds the labels to a function's syntax tree."""

    def __init__(self, source: _Source, name: str) -> None:
        self.source = source
        self.name = name

    def function(self, node: Any) -> Any:
        """Copy the function: it runs its own body without a profiler, and a labelled one with a profiler."""
        head, body = _split(node.body)
        if not body:
            return node
        check = ast.Call(func=ast.Name(id=_ENABLED, ctx=ast.Load()), args=[], keywords=[])
        # Both bodies share the same nodes: compiling does not change them.
        choice = ast.If(test=check, body=self.body(body), orelse=body)
        return _copy_node(node, body=[*head, ast.copy_location(choice, body[0])])

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [self.statement(statement) for statement in statements]

    def statement(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, _QUIET) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._inner(node)
        inside = self._with_labels(node)
        # A range that is open while the function is suspended would not nest with those of others.
        return inside if _suspends(node) else self._label(inside, node)

    def _inner(self, node: Any) -> Any:
        return _Labels(self.source, f"{self.name}.{node.name}").function(node)

    def _with_labels(self, node: ast.stmt) -> ast.stmt:
        """Return the statement with the statements inside it labelled."""
        if isinstance(node, ast.ClassDef):
            return node
        parts: dict[str, Any] = {
            name: self.body(getattr(node, name)) for name in _BODIES if getattr(node, name, None)
        }
        for name in ("handlers", "cases"):
            if getattr(node, name, None):
                parts[name] = [_copy_node(part, body=self.body(part.body)) for part in getattr(node, name)]
        return _copy_node(node, **parts) if parts else node

    def _label(self, inside: ast.stmt, node: ast.stmt) -> ast.stmt:
        # The first line of a statement with a body says what it does before it comes to its body.
        code = " ".join(self.source.lines[node.lineno - 1].split())[:_MAX_CODE_LENGTH]
        text = f"{self.source.shown}:{node.lineno} {self.name} | {code}"
        call = ast.Call(
            func=ast.Name(id=_RANGE, ctx=ast.Load()), args=[ast.Constant(value=text)], keywords=[]
        )
        around = ast.With(items=[ast.withitem(context_expr=call)], body=[inside])
        return ast.copy_location(around, node)


def _split(body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Split a body into what must stay at the top (docstring, ``global``, ``nonlocal``) and the rest."""
    head: list[ast.stmt] = [
        statement
        for at, statement in enumerate(body)
        if isinstance(statement, ast.Global | ast.Nonlocal)
        or (at == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]
    return head, [statement for statement in body if statement not in head]


def _suspends(node: ast.AST) -> bool:
    if isinstance(node, _SUSPENDING):
        return True
    return any(not isinstance(child, _SCOPES) and _suspends(child) for child in ast.iter_child_nodes(node))


def _copy_node(node: Any, **parts: Any) -> Any:
    """Return a copy of `node` with some fields replaced."""
    fields = {name: getattr(node, name) for name in node._fields if hasattr(node, name)}
    return ast.copy_location(type(node)(**{**fields, **parts}), node)


def _compile(node: Any, function: types.FunctionType, source: _Source) -> types.CodeType:
    """Compile `node` with the cells, the class and the flags of `function`."""
    code = function.__code__
    bare = _copy_node(node, decorator_list=[], returns=None)
    cells = [f"{name} = None" for name in code.co_freevars if name != "__class__"]
    parents = function.__qualname__.split(".")[:-1]
    outer = "def __gapless_outer__():\n" + "".join(f"    {line}\n" for line in (*cells, "pass"))
    # Inside the class of its name, names with two underscores are mangled and `super()` has its class.
    if parents and parents[-1] != "<locals>":
        outer += f"    class {parents[-1]}: pass\n"
    module = ast.parse(outer)
    scope: Any = module.body[0]
    if isinstance(scope.body[-1], ast.ClassDef):
        scope = scope.body[-1]
    scope.body.append(bare)
    ast.fix_missing_locations(module)
    flags = code.co_flags & _FUTURES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were shown when the file was imported
        try:
            compiled = compile(module, source.file, "exec", flags=flags, dont_inherit=True)
        except SyntaxError as error:  # `global` inside a block, after the same name in the copy before
            raise _NoSource(error.msg) from None
    result = _find(compiled, code.co_name)
    if result is None or result.co_freevars != code.co_freevars:
        raise _NoSource("its source does not match: it was changed after it was created")
    kept: dict[str, Any] = {"co_qualname": code.co_qualname} if hasattr(code, "co_qualname") else {}
    return result.replace(co_firstlineno=code.co_firstlineno, **kept)


_FUTURES = functools.reduce(
    lambda flags, name: flags | getattr(__import__("__future__"), name).compiler_flag,
    __import__("__future__").all_feature_names,
    0,
)


def _find(code: types.CodeType, name: str) -> types.CodeType | None:
    """Return the first function of that name inside `code`, outer ones first."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    direct = (candidate for candidate in inner if candidate.co_name == name)
    deeper = (match for candidate in inner if (match := _find(candidate, name)) is not None)
    return next(direct, None) or next(deeper, None)
