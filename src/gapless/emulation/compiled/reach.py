"""Find what a function and its callees read besides arguments: closure cells, globals, attributes."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from gapless.emulation.support.stacks import library_of

CALLS = ("_call_impl", "_wrapped_call_impl", "__call__")
"""The names of the methods that call a module."""
NOTHING = object()
_MAX_DEPTH = 4
"""Most calls followed from function to function: bounds the search."""
_MAX_FUNCTIONS, _MAX_RECORDS, _MAX_ATTRIBUTES = 64, 16, 64
"""Most functions and objects followed, and attributes read per object: more would slow each call."""
_OTHER = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor, type, types.ModuleType)

Name = tuple[Any, str]
"""An owner (a module's globals, or an object) and the name of a variable or attribute in it."""


@dataclass
class Reached:
    """What a function and the user's functions it calls may read."""

    cells: list[Any] = field(default_factory=list)
    names: list[Name] = field(default_factory=list)
    modules: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)


def reach_of(target: Any, arguments: Iterable[Any] = ()) -> Reached:
    """Return what `target` (a module, function or method) reads, and the objects and modules in `arguments`.

    >>> rate = 0.5
    >>> reach_of(lambda x: x * rate).names[0][1]
    'rate'
    """
    walk = _Walk()
    walk.function(*function_of(target), depth=0)
    for value in arguments:
        walk.argument(value)
    return walk.result


def function_of(target: Any) -> tuple[Any, Any]:
    """The Python function that runs when `target` is called, and the object it is bound to."""
    if isinstance(target, torch.nn.Module):
        return function_of(target.forward)[0], target
    if isinstance(target, types.MethodType):
        owner = target.__self__
        if isinstance(owner, torch.nn.Module) and target.__name__ in CALLS:
            return function_of(owner.forward)[0], owner
        return function_of(target.__func__)[0], owner
    while hasattr(target, "__wrapped__"):
        target = target.__wrapped__
    return target, None


def content(cell: Any) -> Any:
    """The contents of a closure cell, or `NOTHING`."""
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return NOTHING


def is_record(value: Any) -> bool:
    """Whether `value` is a plain object with attributes: a configuration, a schedule, a trainer."""
    with suppress(Exception):  # a proxy object may raise
        return hasattr(value, "__dict__") and not callable(value) and not isinstance(value, _OTHER)
    return False


class _Walk:
    def __init__(self) -> None:
        self.result = Reached()
        self._visited: set[int] = set()
        self._functions = 0

    def argument(self, value: Any) -> None:
        """Visit an argument; functions are skipped, as signatures tell them apart by identity."""
        self._visit_attribute(value, 0)

    def function(self, function: Any, owner: Any, depth: int) -> None:
        """Visit a function, or a method of `owner`."""
        if owner is not None:
            self._visit(owner, depth)
        code = getattr(function, "__code__", None)
        if code is None or not self._is_new(function) or self._functions >= _MAX_FUNCTIONS:
            return
        self._functions += 1
        names = list(dict.fromkeys(_names(code)))
        for cell in function.__closure__ or ():
            if self._is_new(cell):
                self.result.cells.append(cell)
                self._visit(content(cell), depth)
        for name in names:
            if name in function.__globals__:
                self.result.names.append((function.__globals__, name))
                self._visit(function.__globals__[name], depth)
            method = getattr(type(owner), name, None) if owner is not None else None
            if isinstance(method, types.FunctionType):
                self._follow_call(method, owner, depth)

    def _follow_call(self, function: Any, owner: Any, depth: int) -> None:
        """Follow a call of a user's function; library functions read only their arguments."""
        inner, bound = function_of(function)
        code = getattr(inner, "__code__", None)
        if code is not None and depth < _MAX_DEPTH and not library_of(code.co_filename):
            self.function(inner, owner if bound is None else bound, depth + 1)

    def _visit(self, value: Any, depth: int) -> None:
        if isinstance(value, types.FunctionType | types.MethodType):
            self._follow_call(value, None, depth)
        elif isinstance(value, torch.nn.Module):
            if self._is_new(value):
                self.result.modules.append(value)
                for submodule in {type(module): module for module in value.modules()}.values():
                    self._follow_call(type(submodule).forward, submodule, depth)
        elif isinstance(value, torch.optim.Optimizer):
            if self._is_new(value):
                self.result.optimizers.append(value)
        elif len(self.result.records) < _MAX_RECORDS and is_record(value) and self._is_new(value):
            self.result.records.append(value)
            inside = vars(value)
            for name in list(inside)[:_MAX_ATTRIBUTES]:
                self.result.names.append((value, name))
                self._visit_attribute(inside[name], depth)

    def _visit_attribute(self, value: Any, depth: int) -> None:
        """Visit an attribute of an object, unless it is a function."""
        if not isinstance(value, types.FunctionType | types.MethodType):
            self._visit(value, depth)

    def _is_new(self, value: Any) -> bool:
        is_new = id(value) in self._visited
        self._visited.add(id(value))
        return not is_new


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code uses, including its nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
