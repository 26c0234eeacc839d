"""`Subject`: a callable and its state, of which each run gets a copy in its initial state."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gapless.emulation.support.stacks import library_of
from gapless.prove import tree
from gapless.prove.held import open_leaves

_Memo = dict[int, Any]
_Holders = dict[str, Callable[[], Any]]

_STATE_TYPES = (
    torch.Tensor, nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler, list, dict, set, bytearray, int, float,
)  # fmt: skip
"""Types of globals that are state; instances of classes from the same module are as well."""


@dataclass
class Instance:
    """A callable with state of its own; `holders` return the objects that hold it, by name ("" for
    itself)."""

    call: Callable[..., Any]
    holders: _Holders

    @property
    def objects(self) -> dict[str, Any]:
        """The objects that hold the state, as they are now."""
        return {name: held() for name, held in self.holders.items()}

    def modules(self) -> dict[str, nn.Module]:
        """Return the modules in the objects, by name."""
        modules_by_path: dict[str, nn.Module] = {}
        for name, holder in self.objects.items():
            for path, value in _attributes(name, holder):
                if isinstance(value, nn.Module) and not any(
                    value is other for other in modules_by_path.values()
                ):
                    modules_by_path[path] = value
        return modules_by_path

    def trained_tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and other tensors in the objects that require gradients, by name."""
        tensors: dict[str, torch.Tensor] = {
            _join_names(name, parameter): value
            for name, module in self.modules().items()
            for parameter, value in module.named_parameters()
        }
        for name, holder in self.objects.items():
            for path, value in _attributes(name, holder):
                if isinstance(value, torch.Tensor) and not any(
                    value is tensor for tensor in tensors.values()
                ):
                    tensors[path] = value
        return {name: value for name, value in tensors.items() if value.requires_grad and value.is_leaf}

    def state(self) -> dict[str, Any]:
        """Return the tensors in the objects and their optimizers, by name; only public attributes of objects.

        Numbers are left out, as they may be times; where they matter, later calls show it.
        """
        tensors_by_name: dict[str, Any] = {}
        for name, module in self.modules().items():
            for key, value in (*module.named_parameters(), *module.named_buffers()):
                tensors_by_name[_join_names(name, key)] = value
        for name, holder in self.objects.items():
            for path, value in _attributes(name, holder):
                tensors_by_name.update(
                    (where, part)
                    for where, part in open_leaves(value, path)
                    if isinstance(part, torch.Tensor) and "._" not in f".{where}"
                )
        return tensors_by_name

    def cast(self, dtype: torch.dtype | None) -> None:
        """Cast the floating tensors of the modules to `dtype`."""
        if dtype is not None:
            for module in self.modules().values():
                module.to(dtype)


class Subject:
    """The callable `target`, called `name`; `uncopied` lists state that cannot be copied and lasts between
    runs."""

    def __init__(self, name: str, target: Callable[..., Any]) -> None:
        self.name = name
        self.target = target
        self.uncopied: list[str] = []
        memo: _Memo = {}  # shared: an optimizer's parameters are the model's
        self._globals = [
            (space, key, self._copy(space[key], memo))
            for space, key in _state_globals(target)
            if isinstance(space[key], _STATE_TYPES) or not callable(space[key])
        ]

    @contextmanager
    def fresh(self) -> Iterator[Instance]:
        """Yield the callable in its initial state; changes to globals are undone at the end."""
        memo: _Memo = {}
        before = [(space, key, space[key]) for space, key, _ in self._globals if key in space]
        holders: _Holders = {}
        try:
            for space, key, value in self._globals:
                space[key] = self._copy(value, memo)
                holders[key] = functools.partial(space.get, key)
            yield Instance(self._instance(self.target, memo, holders), holders)
        finally:
            for space, key, value in before:
                space[key] = value

    # -- copies ------------------------------------------------------------------------------------

    def _instance(self, target: Any, memo: _Memo, holders: _Holders) -> Callable[..., Any]:
        if isinstance(target, functools.partial):
            inner = self._instance(target.func, memo, holders)
            arguments = [self._copy(value, memo) for value in target.args]
            keywords = {key: self._copy(value, memo) for key, value in target.keywords.items()}
            holders.update((key, functools.partial(keywords.get, key)) for key in keywords)
            return functools.partial(inner, *arguments, **keywords)
        if isinstance(target, types.MethodType):
            owner = self._copy(target.__self__, memo)
            holders[""] = lambda: owner
            return types.MethodType(target.__func__, owner)
        if isinstance(target, types.FunctionType):
            # Functions compiled by torch hold torch's own state, which must not be copied.
            return target if _is_of_torch(target) else self._function(target, memo, holders)
        copied: Callable[..., Any] = self._copy(target, memo)
        if copied is not target:
            holders[""] = lambda: copied
        return copied

    def _function(self, function: types.FunctionType, memo: _Memo, holders: _Holders) -> Any:
        """Return `function` with cells and defaults of its own."""
        if id(function) in memo:
            return memo[id(function)]
        names = function.__code__.co_freevars
        cells = tuple(types.CellType() for _ in names)
        defaults = function.__defaults__
        own = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, defaults, cells or None
        )
        memo[id(function)] = own
        own.__kwdefaults__ = self._copy(function.__kwdefaults__, memo)
        own.__defaults__ = self._copy(defaults, memo)
        own.__dict__.update(function.__dict__)
        for name, cell, old in zip(names, cells, function.__closure__ or (), strict=True):
            try:
                content = old.cell_contents
            except ValueError:  # not bound yet
                continue
            if isinstance(content, (types.FunctionType, types.MethodType, functools.partial)):
                cell.cell_contents = self._instance(content, memo, holders)
            else:
                cell.cell_contents = self._copy(content, memo)
                holders[name] = functools.partial(getattr, cell, "cell_contents", None)
        return own

    def _copy(self, value: Any, memo: _Memo) -> Any:
        if isinstance(value, torch.Tensor) and not value.is_leaf:
            value = value.detach().requires_grad_()
        if isinstance(value, types.ModuleType):
            return value
        try:
            return copy.deepcopy(value, memo)
        except Exception as error:  # a user's __deepcopy__ may raise anything
            description = (
                f"{type(value).__name__} ({str(error).splitlines()[0] if str(error) else 'no copy'})"
            )
            if description not in self.uncopied:
                self.uncopied.append(description)
            return value


def _join_names(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _attributes(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield `value` and, for an object of the user's, its attributes, each with its path."""
    yield name, value
    if isinstance(value, (nn.Module, torch.Tensor, type, types.FunctionType, types.ModuleType)):
        return
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict):
        for key, part in held.items():
            yield from tree.leaves(part, _join_names(name, key))


# -- what a function refers to ---------------------------------------------------------------------


def entry_functions(target: Any) -> Iterator[types.FunctionType]:
    """Yield the Python functions in which a call of `target` begins."""
    if isinstance(target, functools.partial):
        yield from entry_functions(target.func)
    elif isinstance(target, types.MethodType):
        yield from entry_functions(target.__func__)
    elif isinstance(target, types.FunctionType):
        yield target
        for cell in target.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            if isinstance(content, (types.FunctionType, types.MethodType, functools.partial)):
                yield from entry_functions(content)
    elif isinstance(target, nn.Module):
        for module in target.modules():
            if not type(module).__module__.startswith("torch."):
                yield from _methods_of(type(module))
    elif not isinstance(target, type) and callable(target):
        yield from _methods_of(type(target))


def reachable_functions(target: Any) -> list[types.FunctionType]:
    """Return the Python functions of the same modules that a call of `target` may run.

    Functions wrapped by torch are left out: compiled code must stay as it is.
    """
    functions_by_id: dict[int, types.FunctionType] = {}
    values = [target, *(space[name] for space, name in _referenced_globals(target))]
    for value in values:
        own = list(_methods_of(value)) if isinstance(value, type) else list(entry_functions(value))
        if not any(map(_is_of_torch, own)):
            functions_by_id.update((id(function), function) for function in own)
    return list(functions_by_id.values())


def _methods_of(cls: type) -> Iterator[types.FunctionType]:
    for value in vars(cls).values():
        if isinstance(value, types.FunctionType):
            yield value


def _referenced_globals(target: Any) -> list[tuple[dict[str, Any], str]]:
    """Return the globals that the code of `target` names, as namespace and name.

    Functions and classes of the same module are followed.
    """
    names: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    waiting = list(entry_functions(target))
    while waiting:
        function = waiting.pop()
        space = function.__globals__
        for name in _code_names(function.__code__):
            if name not in space or (id(space), name) in names:
                continue
            names[id(space), name] = (space, name)
            value = space[name]
            if getattr(value, "__module__", None) == space.get("__name__"):
                waiting += _methods_of(value) if isinstance(value, type) else entry_functions(value)
    return list(names.values())


def _code_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_names(constant)


def _is_of_torch(function: types.FunctionType) -> bool:
    return (function.__globals__.get("__name__") or "").split(".")[0] == "torch"


def _state_globals(target: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the referenced globals that are state, without those of libraries."""
    for space, name in _referenced_globals(target):
        if library_of(space.get("__file__") or ""):
            continue
        value = space[name]
        own = type(value).__module__ == space.get("__name__") and not isinstance(value, type)
        if isinstance(value, _STATE_TYPES) or own:
            yield space, name


def named_values(target: Any) -> Iterator[tuple[str, Any]]:
    """Yield values that a call of `target` may use, by name: attributes, defaults, closures, globals."""
    if isinstance(target, functools.partial):
        yield from target.keywords.items()
    owner = getattr(target, "__self__", target)
    objects = list(owner.modules()) if isinstance(owner, nn.Module) else [owner]
    for holder in objects:
        held = getattr(holder, "__dict__", None)
        if isinstance(held, dict):
            yield from held.items()
    for function in entry_functions(target):
        code = function.__code__
        positional = code.co_varnames[: code.co_argcount]
        values = function.__defaults__ or ()
        yield from zip(positional[len(positional) - len(values) :], values, strict=True)
        yield from (function.__kwdefaults__ or {}).items()
    for space, name in _referenced_globals(target):
        yield name, space[name]
