"""What a function reads besides its arguments: cells, globals, attributes, also by way of what it calls."""

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
_DEEPEST = 4
_FUNCTIONS, _RECORDS, _ATTRIBUTES = 64, 16, 64
"""So many are looked at: more would be felt at each call."""
_OTHER = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor, type, types.ModuleType)

Name = tuple[Any, str]
"""A name in a dictionary, which is a module's globals, or of an object, which has it as an attribute."""


@dataclass
class Reached:
    """What a function and the user's functions that it calls may read."""

    cells: list[Any] = field(default_factory=list)
    names: list[Name] = field(default_factory=list)
    modules: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)


def reached(target: Any, given: Iterable[Any] = ()) -> Reached:
    """What is reached from `target`, a module, a function or a method, and from what it is `given`: the
    objects and modules there.

    >>> rate = 0.5
    >>> reached(lambda x: x * rate).names[0][1]
    'rate'
    """
    walk = _Walk()
    walk.function(*function_of(target), depth=0)
    for value in given:
        walk.given(value)
    return walk.found


def function_of(target: Any) -> tuple[Any, Any]:
    """The Python function that runs when `target` is called, and the object that it is a method of."""
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
    """What is in a cell of a closure, or `NOTHING`."""
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return NOTHING


def is_record(value: Any) -> bool:
    """Whether it is an object that holds settings: a configuration, a schedule, a trainer."""
    with suppress(Exception):  # what fails when it is asked is somebody's proxy
        return hasattr(value, "__dict__") and not callable(value) and not isinstance(value, _OTHER)
    return False


class _Walk:
    def __init__(self) -> None:
        self.found = Reached()
        self._seen: set[int] = set()
        self._functions = 0

    def given(self, value: Any) -> None:
        """An argument. Functions among them are told apart by what they are."""
        self._inside(value, 0)

    def function(self, function: Any, owner: Any, depth: int) -> None:
        """`function`, a method of `owner` where that is not None."""
        if owner is not None:
            self._value(owner, depth)
        code = getattr(function, "__code__", None)
        if code is None or not self._first(function) or self._functions >= _FUNCTIONS:
            return
        self._functions += 1
        names = list(dict.fromkeys(_names(code)))
        for cell in function.__closure__ or ():
            if self._first(cell):
                self.found.cells.append(cell)
                self._value(content(cell), depth)
        for name in names:
            if name in function.__globals__:
                self.found.names.append((function.__globals__, name))
                self._value(function.__globals__[name], depth)
            method = getattr(type(owner), name, None) if owner is not None else None
            if isinstance(method, types.FunctionType):
                self._called(method, owner, depth)

    def _called(self, function: Any, owner: Any, depth: int) -> None:
        """The user's own are followed; libraries' keep to what they are given."""
        inner, bound = function_of(function)
        code = getattr(inner, "__code__", None)
        if code is not None and depth < _DEEPEST and not library_of(code.co_filename):
            self.function(inner, owner if bound is None else bound, depth + 1)

    def _value(self, value: Any, depth: int) -> None:
        if isinstance(value, types.FunctionType | types.MethodType):
            self._called(value, None, depth)
        elif isinstance(value, torch.nn.Module):
            if self._first(value):
                self.found.modules.append(value)
                for one in {type(module): module for module in value.modules()}.values():
                    self._called(type(one).forward, one, depth)
        elif isinstance(value, torch.optim.Optimizer):
            if self._first(value):
                self.found.optimizers.append(value)
        elif len(self.found.records) < _RECORDS and is_record(value) and self._first(value):
            self.found.records.append(value)
            inside = vars(value)
            for name in list(inside)[:_ATTRIBUTES]:
                self.found.names.append((value, name))
                self._inside(inside[name], depth)

    def _inside(self, value: Any, depth: int) -> None:
        """An attribute of an object: its own functions are called by whoever has the object."""
        if not isinstance(value, types.FunctionType | types.MethodType):
            self._value(value, depth)

    def _first(self, value: Any) -> bool:
        known = id(value) in self._seen
        self._seen.add(id(value))
        return not known


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code uses, that of functions within it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
