"""`Subject`: a callable and its state, of which each run gets a copy as it was at the beginning."""

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
from gapless.prove.held import opened

_Memo = dict[int, Any]
_Holders = dict[str, Callable[[], Any]]

_STATE = (
    torch.Tensor, nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler, list, dict, set, bytearray, int, float,
)  # fmt: skip
"""What a global must be to be state; instances of classes from the same module are, too."""


@dataclass
class Instance:
    """A callable with state of its own. `holders` give what the state is in, by name ("" for itself)."""

    call: Callable[..., Any]
    holders: _Holders

    @property
    def objects(self) -> dict[str, Any]:
        """What the state is in, as it is now."""
        return {name: held() for name, held in self.holders.items()}

    def modules(self) -> dict[str, nn.Module]:
        """The modules in it, by name."""
        found: dict[str, nn.Module] = {}
        for name, one in self.objects.items():
            for path, value in _attributes(name, one):
                if isinstance(value, nn.Module) and not any(value is other for other in found.values()):
                    found[path] = value
        return found

    def trained(self) -> dict[str, torch.Tensor]:
        """Parameters, and other tensors kept in it, that require gradients, by name."""
        found: dict[str, torch.Tensor] = {
            _joined(name, parameter): value
            for name, module in self.modules().items()
            for parameter, value in module.named_parameters()
        }
        for name, one in self.objects.items():
            for path, value in _attributes(name, one):
                if isinstance(value, torch.Tensor) and not any(value is known for known in found.values()):
                    found[path] = value
        return {name: value for name, value in found.items() if value.requires_grad and value.is_leaf}

    def state(self) -> dict[str, Any]:
        """Tensors kept in it and in its optimizers, by name; of those of an object only the public ones.

        Numbers are left out, which may be times; where they matter, later calls show it.
        """
        found: dict[str, Any] = {}
        for name, module in self.modules().items():
            for key, value in (*module.named_parameters(), *module.named_buffers()):
                found[_joined(name, key)] = value
        for name, one in self.objects.items():
            for path, value in _attributes(name, one):
                found.update(
                    (where, part)
                    for where, part in opened(value, path)
                    if isinstance(part, torch.Tensor) and "._" not in f".{where}"
                )
        return found

    def cast(self, dtype: torch.dtype | None) -> None:
        """Give the modules in it floating tensors of `dtype`."""
        if dtype is not None:
            for module in self.modules().values():
                module.to(dtype)


class Subject:
    """`target`, called `name`. `kept` names state that cannot be copied and so goes on from run to run."""

    def __init__(self, name: str, target: Callable[..., Any]) -> None:
        self.name = name
        self.target = target
        self.kept: list[str] = []
        memo: _Memo = {}  # of all of them: an optimizer's parameters are the model's
        self._globals = [
            (space, key, self._copied(space[key], memo))
            for space, key in _state_globals(target)
            if isinstance(space[key], _STATE) or not callable(space[key])
        ]

    @contextmanager
    def fresh(self) -> Iterator[Instance]:
        """The callable with its state as it was; what it does to globals is undone at the end."""
        memo: _Memo = {}
        before = [(space, key, space[key]) for space, key, _ in self._globals if key in space]
        holders: _Holders = {}
        try:
            for space, key, value in self._globals:
                space[key] = self._copied(value, memo)
                holders[key] = functools.partial(space.get, key)
            yield Instance(self._instance(self.target, memo, holders), holders)
        finally:
            for space, key, value in before:
                space[key] = value

    # -- copies ------------------------------------------------------------------------------------

    def _instance(self, target: Any, memo: _Memo, holders: _Holders) -> Callable[..., Any]:
        if isinstance(target, functools.partial):
            inner = self._instance(target.func, memo, holders)
            arguments = [self._copied(value, memo) for value in target.args]
            keywords = {key: self._copied(value, memo) for key, value in target.keywords.items()}
            holders.update((key, functools.partial(keywords.get, key)) for key in keywords)
            return functools.partial(inner, *arguments, **keywords)
        if isinstance(target, types.MethodType):
            owner = self._copied(target.__self__, memo)
            holders[""] = lambda: owner
            return types.MethodType(target.__func__, owner)
        if isinstance(target, types.FunctionType):
            # What torch has compiled holds torch's own state, which is nobody's to copy.
            return target if _is_torchs(target) else self._function(target, memo, holders)
        made: Callable[..., Any] = self._copied(target, memo)
        if made is not target:
            holders[""] = lambda: made
        return made

    def _function(self, function: types.FunctionType, memo: _Memo, holders: _Holders) -> Any:
        """`function` with cells and defaults of its own."""
        if id(function) in memo:
            return memo[id(function)]
        names = function.__code__.co_freevars
        cells = tuple(types.CellType() for _ in names)
        defaults = function.__defaults__
        own = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, defaults, cells or None
        )
        memo[id(function)] = own
        own.__kwdefaults__ = self._copied(function.__kwdefaults__, memo)
        own.__defaults__ = self._copied(defaults, memo)
        own.__dict__.update(function.__dict__)
        for name, cell, old in zip(names, cells, function.__closure__ or (), strict=True):
            try:
                content = old.cell_contents
            except ValueError:  # not bound yet
                continue
            if isinstance(content, (types.FunctionType, types.MethodType, functools.partial)):
                cell.cell_contents = self._instance(content, memo, holders)
            else:
                cell.cell_contents = self._copied(content, memo)
                holders[name] = functools.partial(getattr, cell, "cell_contents", None)
        return own

    def _copied(self, value: Any, memo: _Memo) -> Any:
        if isinstance(value, torch.Tensor) and not value.is_leaf:
            value = value.detach().requires_grad_()
        if isinstance(value, types.ModuleType):
            return value
        try:
            return copy.deepcopy(value, memo)
        except Exception as error:  # whatever a __deepcopy__ of the user's raises
            told = f"{type(value).__name__} ({str(error).splitlines()[0] if str(error) else 'no copy'})"
            if told not in self.kept:
                self.kept.append(told)
            return value


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _attributes(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """`value` and, where it is an object of the user's, its attributes, each with its path."""
    yield name, value
    if isinstance(value, (nn.Module, torch.Tensor, type, types.FunctionType, types.ModuleType)):
        return
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict):
        for key, part in held.items():
            yield from tree.leaves(part, _joined(name, key))


# -- what a function refers to ---------------------------------------------------------------------


def functions(target: Any) -> Iterator[types.FunctionType]:
    """The Python functions that a call of `target` begins in."""
    if isinstance(target, functools.partial):
        yield from functions(target.func)
    elif isinstance(target, types.MethodType):
        yield from functions(target.__func__)
    elif isinstance(target, types.FunctionType):
        yield target
        for cell in target.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            if isinstance(content, (types.FunctionType, types.MethodType, functools.partial)):
                yield from functions(content)
    elif isinstance(target, nn.Module):
        for module in target.modules():
            if not type(module).__module__.startswith("torch."):
                yield from _methods(type(module))
    elif not isinstance(target, type) and callable(target):
        yield from _methods(type(target))


def reached(target: Any) -> list[types.FunctionType]:
    """The Python functions that a call of `target` may run, of its own and of the same modules.

    What torch has wrapped is left out: compiled code is to stay as it is.
    """
    found: dict[int, types.FunctionType] = {}
    values = [target, *(space[name] for space, name in _referred(target))]
    for value in values:
        own = list(_methods(value)) if isinstance(value, type) else list(functions(value))
        if not any(map(_is_torchs, own)):
            found.update((id(one), one) for one in own)
    return list(found.values())


def _methods(cls: type) -> Iterator[types.FunctionType]:
    for value in vars(cls).values():
        if isinstance(value, types.FunctionType):
            yield value


def _referred(target: Any) -> list[tuple[dict[str, Any], str]]:
    """The globals that the code of `target` names, each as the module's namespace and the name.

    Functions and classes of the same module are followed.
    """
    found: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    waiting = list(functions(target))
    while waiting:
        function = waiting.pop()
        space = function.__globals__
        for name in _names(function.__code__):
            if name not in space or (id(space), name) in found:
                continue
            found[id(space), name] = (space, name)
            value = space[name]
            if getattr(value, "__module__", None) == space.get("__name__"):
                waiting += _methods(value) if isinstance(value, type) else functions(value)
    return list(found.values())


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_torchs(function: types.FunctionType) -> bool:
    return (function.__globals__.get("__name__") or "").split(".")[0] == "torch"


def _state_globals(target: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """The globals among them that are state; those of libraries are theirs."""
    for space, name in _referred(target):
        if library_of(space.get("__file__") or ""):
            continue
        value = space[name]
        own = type(value).__module__ == space.get("__name__") and not isinstance(value, type)
        if isinstance(value, _STATE) or own:
            yield space, name


def constants(target: Any) -> Iterator[tuple[str, Any]]:
    """Values that a call of `target` may use, by name: attributes, defaults, closures, globals."""
    if isinstance(target, functools.partial):
        yield from target.keywords.items()
    owner = getattr(target, "__self__", target)
    objects = list(owner.modules()) if isinstance(owner, nn.Module) else [owner]
    for one in objects:
        held = getattr(one, "__dict__", None)
        if isinstance(held, dict):
            yield from held.items()
    for function in functions(target):
        code = function.__code__
        positional = code.co_varnames[: code.co_argcount]
        values = function.__defaults__ or ()
        yield from zip(positional[len(positional) - len(values) :], values, strict=True)
        yield from (function.__kwdefaults__ or {}).items()
    for space, name in _referred(target):
        yield name, space[name]
