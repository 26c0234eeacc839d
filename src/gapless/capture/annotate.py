"""`annotate`: every statement of somebody's function under its own name in a profile, without editing it."""

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
_MOST_CODE = 100
"""Characters of a statement in its name."""

_QUIET = (ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_SUSPENDING = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
_BODIES = ("body", "orelse", "finalbody")


def annotate(*targets: Any) -> Annotation:
    """Give each statement of `targets` a range of its own in profiles, named by its source line.

    ``losses.py:42 dice_loss | score = score[mask]`` is then around the operators of that line, in Perfetto
    and in ``gapless trace``, which tells lines by these names where Python stacks were not recorded, and the
    line itself where stacks know the function only.

    Args:
        targets: functions, methods, classes, modules, or objects (a metric, a loss, a layer): of classes and
            objects all methods that their class and its bases define, except those of Python and of
            ``torch``; of modules all functions and classes that they define.

    The functions are changed in place, wherever they were imported to, until the block ends or ``undo()`` is
    called. While no profiler runs, a call of one costs a fraction of a microsecond more.

    Example::

        with gapless.annotate(dice_loss, metrics["accuracy"]), torch.profiler.profile() as profile:
            train_step()

    Raises:
        UsageError: a target has no Python source that could be labelled.
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
    """Functions whose statements are labelled, until it is left or undone. `names` are the functions'."""

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
        found = list(dict.fromkeys(_functions(target)))
        if not found:
            raise UsageError(f"annotate: {_described(target)} defines no Python functions to label")
        reasons = []
        for function in found:
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
        if reasons and len(reasons) == len(found):
            raise UsageError(
                f"annotate: nothing in {_described(target)} can be labelled: {'; '.join(reasons)}"
            )


class _NoSource(Exception):
    """Why a function cannot be labelled."""


_labelled: set[types.FunctionType] = set()

_METHODS = (
    types.FunctionType,
    property,
    staticmethod,
    classmethod,
    functools.cached_property,
    functools.partialmethod,
)
_WORKING = frozenset({"__call__", "__getitem__", "__iter__", "__next__", "__enter__", "__exit__", "__len__"})
_SOMEWHERE = place("profiler_somewhere")


def _profiling() -> bool:
    """Whether a profiler looks on: in this thread, or in all."""
    if torch.compiler.is_compiling():  # ranges would break the graph, and say nothing of fused operators
        return False
    return getattr(*_SOMEWHERE) or profiler_enabled()


# What is labelled ------------------------------------------------------------------------------------------


def _functions(target: Any) -> Iterator[types.FunctionType]:
    """The Python functions of a target."""
    if isinstance(target, types.ModuleType):
        members = [
            one for one in vars(target).values() if getattr(one, "__module__", None) == target.__name__
        ]
        parts: list[Any] = [one for one in members if isinstance(one, type | types.FunctionType)]
    elif isinstance(target, type):
        parts = [method for base in target.__mro__ if not _is_foundation(base) for method in _methods(base)]
    elif isinstance(target, property):
        parts = [one for one in (target.fget, target.fset, target.fdel) if one is not None]
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
        yield from _functions(part)


def _methods(base: type) -> list[Any]:
    """What a class defines itself; of Python's own protocols only those in which work is done."""
    return [
        value
        for name, value in vars(base).items()
        if isinstance(value, _METHODS) and (name in _WORKING or not name.startswith("__"))
    ]


def _is_foundation(base: type) -> bool:
    """Whether the class is one that everything stands on, and whose methods say nothing about a line."""
    module = base.__module__.partition(".")[0]
    return (
        module in ("torch", "typing", "abc", "collections", "functools") or module in sys.builtin_module_names
    )


def _described(target: Any) -> str:
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    return str(name) if name else f"a {type(target).__name__}"


# How -------------------------------------------------------------------------------------------------------


def _with_labels(function: types.FunctionType) -> types.CodeType:
    """The code of `function`, with a label around each statement that is used only while a profiler runs."""
    code = function.__code__
    source = _source(function)
    definition = _definition(source.tree, code)
    if definition is None:
        raise _NoSource("its source is not in the file: it was generated, or the file has changed since")
    labelled = _Labels(source, function.__qualname__.replace(".<locals>", "")).function(definition)
    return _compiled(labelled, function, source)


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
    return _Source(file, _shown(file), lines, tree)


def _shown(file: str) -> str:
    """The path as profiles write it: without the folder that imports come from, or the working directory."""
    path = os.path.abspath(file)
    folders = [folder for folder in (*sys.path, os.getcwd()) if folder]
    inside = [
        folder for folder in map(os.path.abspath, folders) if path.startswith(folder.rstrip(os.sep) + os.sep)
    ]
    return os.path.relpath(path, max(inside, key=len)).replace(os.sep, "/") if inside else path


def _definition(tree: ast.AST, code: types.CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Where `code` is defined; Python counts the first decorator as its first line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


class _Labels:
    """Writes the labels into a function's tree."""

    def __init__(self, source: _Source, name: str) -> None:
        self.source = source
        self.name = name

    def function(self, node: Any) -> Any:
        """A copy of the function: its own body where no profiler runs, one with labels where one does."""
        head, body = _split(node.body)
        if not body:
            return node
        check = ast.Call(func=ast.Name(id=_ENABLED, ctx=ast.Load()), args=[], keywords=[])
        # The same nodes stand in both bodies: compiling does not change them.
        choice = ast.If(test=check, body=self.body(body), orelse=body)
        return _like(node, body=[*head, ast.copy_location(choice, body[0])])

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [self.statement(one) for one in statements]

    def statement(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, _QUIET) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._inner(node)
        inside = self._with_labels(node)
        # A range that is open while the function is suspended would not nest with those of others.
        return inside if _suspends(node) else self._labelled(inside, node)

    def _inner(self, node: Any) -> Any:
        return _Labels(self.source, f"{self.name}.{node.name}").function(node)

    def _with_labels(self, node: ast.stmt) -> ast.stmt:
        """The statement with the statements in it labelled."""
        if isinstance(node, ast.ClassDef):
            return node
        parts: dict[str, Any] = {
            name: self.body(getattr(node, name)) for name in _BODIES if getattr(node, name, None)
        }
        for name in ("handlers", "cases"):
            if getattr(node, name, None):
                parts[name] = [_like(one, body=self.body(one.body)) for one in getattr(node, name)]
        return _like(node, **parts) if parts else node

    def _labelled(self, inside: ast.stmt, node: ast.stmt) -> ast.stmt:
        # The first line of a statement with a body says what it does before it comes to its body.
        code = " ".join(self.source.lines[node.lineno - 1].split())[:_MOST_CODE]
        text = f"{self.source.shown}:{node.lineno} {self.name} | {code}"
        call = ast.Call(
            func=ast.Name(id=_RANGE, ctx=ast.Load()), args=[ast.Constant(value=text)], keywords=[]
        )
        around = ast.With(items=[ast.withitem(context_expr=call)], body=[inside])
        return ast.copy_location(around, node)


def _split(body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """What must stay at the top of a function (the docstring, ``global`` and ``nonlocal``), and the rest."""
    head: list[ast.stmt] = [
        one
        for at, one in enumerate(body)
        if isinstance(one, ast.Global | ast.Nonlocal)
        or (at == 0 and isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
    ]
    return head, [one for one in body if one not in head]


def _suspends(node: ast.AST) -> bool:
    if isinstance(node, _SUSPENDING):
        return True
    return any(not isinstance(one, _SCOPES) and _suspends(one) for one in ast.iter_child_nodes(node))


def _like(node: Any, **parts: Any) -> Any:
    """A copy of `node` with other parts."""
    fields = {name: getattr(node, name) for name in node._fields if hasattr(node, name)}
    return ast.copy_location(type(node)(**{**fields, **parts}), node)


def _compiled(node: Any, function: types.FunctionType, source: _Source) -> types.CodeType:
    """`node` compiled with the cells, the class and the flags that `function` has."""
    code = function.__code__
    bare = _like(node, decorator_list=[], returns=None)
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
    found = _find(compiled, code.co_name)
    if found is None or found.co_freevars != code.co_freevars:
        raise _NoSource("its source does not match: it was changed after it was created")
    kept: dict[str, Any] = {"co_qualname": code.co_qualname} if hasattr(code, "co_qualname") else {}
    return found.replace(co_firstlineno=code.co_firstlineno, **kept)


_FUTURES = functools.reduce(
    lambda flags, name: flags | getattr(__import__("__future__"), name).compiler_flag,
    __import__("__future__").all_feature_names,
    0,
)


def _find(code: types.CodeType, name: str) -> types.CodeType | None:
    """The first function of that name inside `code`, the outer ones first."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    direct = (one for one in inner if one.co_name == name)
    deeper = (found for one in inner if (found := _find(one, name)) is not None)
    return next(direct, None) or next(deeper, None)
