"""Waits taken out of code that is there: functions run as if a statement of theirs were not."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

WAITS = ("wait", "wait_event", "wait_stream", "synchronize", "record_stream")


def waits(*modules: types.ModuleType) -> list[str]:
    """The statements of `modules` that only wait, each as ``Class.function: stream.wait_event(event)``."""
    return sorted(name for module in modules for name in _statements(module))


@contextmanager
def without(*names: str, modules: tuple[types.ModuleType, ...]) -> Iterator[None]:
    """The functions of `modules` without the statements of those names, whoever has got hold of them."""
    before: list[tuple[types.FunctionType, types.CodeType]] = []
    for module in modules:
        gone = [statement for name, statement in _statements(module).items() if name in names]
        kept = [statement.value for statement in gone]
        for statement in gone:
            statement.value = ast.copy_location(ast.Constant(None), statement.value)
        if gone:
            before += _replace_code(compile(_tree(module), str(module.__file__), "exec"), module)
        for statement, value in zip(gone, kept, strict=True):
            statement.value = value
    assert before or not names, f"nothing to take out: {names}"
    try:
        yield
    finally:
        for function, code in before:
            function.__code__ = code


@cache
def _tree(module: types.ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


@cache
def _statements(module: types.ModuleType) -> dict[str, ast.Expr]:
    """By name; the second of one name in a function has a number."""
    statements: dict[str, ast.Expr] = {}
    for name, statement in _expressions(_tree(module), ""):
        again = sum(name == earlier.partition(" #")[0] for earlier in statements)
        statements[f"{name} #{again + 1}" if again else name] = statement
    return statements


def _expressions(node: ast.AST, path: str) -> Iterator[tuple[str, ast.Expr]]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        inner = f"{path}.{child.name}".lstrip(".") if named else path  # type: ignore[attr-defined]
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
            called = child.value.func
            if isinstance(called, ast.Attribute) and called.attr in WAITS:
                yield f"{path}: {ast.unparse(child)}", child
        yield from _expressions(child, inner)


def _replace_code(
    changed: types.CodeType, module: types.ModuleType
) -> list[tuple[types.FunctionType, types.CodeType]]:
    """Give functions of `module` the code that differs in `changed`; return them with their old code."""
    codes = {(own_code.co_name, own_code.co_firstlineno): own_code for own_code in _codes(changed)}
    replaced = []
    for function in _functions(vars(module).values(), str(module.__file__), set()):
        code: Any = function.__code__
        own = codes.get((code.co_name, code.co_firstlineno))
        if own is not None and own.co_code != code.co_code and own.co_freevars == code.co_freevars:
            replaced.append((function, code))
            function.__code__ = own
    return replaced


def _functions(values: Iterable[Any], file: str, visited: set[int]) -> Iterator[types.FunctionType]:
    """Yield the functions of `file` among `values`, in their classes and wrappers."""
    for value in values:
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            yield from _functions((value.fget, value.fset), file, visited)
        elif isinstance(value, type):
            yield from _functions(list(vars(value).values()), file, visited)
        elif isinstance(value, types.FunctionType):
            if value.__code__.co_filename == file:
                yield value
            held = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
            yield from _functions((*held, getattr(value, "__wrapped__", None)), file, visited)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)
