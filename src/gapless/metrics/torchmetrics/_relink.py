"""Copies of TorchMetrics functions that call what waits less, and are otherwise the same code.

Nothing of TorchMetrics is patched. A function that reaches something that has a replacement is copied with
globals in which that name means the replacement; so are the functions between the two. Whoever calls the
originals, this process's other metrics included, gets the originals.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, KeysView
from typing import Any

import torch

from gapless.metrics.torchmetrics._constants import as_tensor_without_waiting, tensor_without_waiting
from gapless.metrics.torchmetrics._registry import Function, table

LIBRARY = "torchmetrics"
SCALARS = "numbers become tensors by a fill on the GPU, not by a copy"


GREATER = "the greater of two values is chosen on the GPU"
ASKS_MAX = ("torchmetrics.functional.image.ssim",)
"""Modules that call Python's `max` on tensors, which compares them on the host."""


def in_library(module: str | None) -> bool:
    """Whether a module's name is TorchMetrics' own."""
    return bool(module) and (module == LIBRARY or str(module).startswith(LIBRARY + "."))


class _Torch(types.ModuleType):
    """`torch` as relinked functions see it: the same names, but constants reach the device without a copy."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _torch_seen_by_relinked() -> types.ModuleType:
    seen = _Torch("torch")
    seen.__dict__.update({name: value for name, value in vars(torch).items() if not name.startswith("__")})
    seen.__dict__.update(tensor=tensor_without_waiting, as_tensor=as_tensor_without_waiting)
    return seen


def _max(*values: Any, **options: Any) -> Any:
    """Python's `max`; of two tensors of one element, without asking the host which it is."""
    if options or len(values) != 2 or not all(isinstance(one, torch.Tensor) for one in values):
        return max(*values, **options)
    first, second = values
    return torch.where(second > first, second, first)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def names_in(function: types.FunctionType) -> KeysView[str]:
    """The global names and attributes in the code of `function`, and of those inside it."""
    return dict.fromkeys(name for code in _codes(function.__code__) for name in code.co_names).keys()


class Relinker:
    """Copies functions, each once, and knows what was changed on the way to each."""

    def __init__(self) -> None:
        self._torch = _torch_seen_by_relinked()
        self._globals: dict[int, dict[str, Any]] = {}
        self._copies: dict[Function, Function] = {}
        self._inner: dict[Function, Function] = {}
        self._reach: dict[Function, tuple[frozenset[str], frozenset[str]]] = {}
        self._kept: list[dict[str, Any]] = []

    def reaches(self, function: Function) -> frozenset[str]:
        """What the report says of everything replaced that `function` can reach; empty if nothing is."""
        return self._walked(function)[0]

    def meets(self, function: Function) -> frozenset[str]:
        """Names of functions that `function` can reach and that have another text than what was replaced."""
        return self._walked(function)[1]

    def _walked(self, function: Function) -> tuple[frozenset[str], frozenset[str]]:
        known = self._reach.get(function)
        if known is not None:
            return known
        said: set[str] = set()
        strange: set[str] = set()
        self._walk(function, {}, said, strange)
        return self._reach.setdefault(function, (frozenset(said), frozenset(strange)))

    def _walk(
        self, function: Function, seen: dict[Function, None], said: set[str], strange: set[str]
    ) -> None:
        if function in seen or not isinstance(function, types.FunctionType):
            return
        seen[function] = None
        if function in table().strange_functions:
            strange.add(function.__name__)
        replaced = table().of.get(function)
        if replaced is not None:
            said.add(replaced[1])
            return
        for default in (function.__defaults__ or ()) + tuple((function.__kwdefaults__ or {}).values()):
            if isinstance(default, types.FunctionType) and in_library(default.__module__):
                self._walk(default, seen, said, strange)
        names = names_in(function)
        if self._makes_constants(function, names):
            said.add(SCALARS)
        if "max" in names and function.__module__ in ASKS_MAX:
            said.add(GREATER)
        for name in names:
            value = function.__globals__.get(name)
            if isinstance(value, types.FunctionType) and in_library(value.__module__):
                self._walk(value, seen, said, strange)

    @staticmethod
    def _makes_constants(function: types.FunctionType, names: KeysView[str]) -> bool:
        uses = function.__globals__.get("torch") is torch and "torch" in names
        return (uses and not names.isdisjoint({"tensor", "as_tensor"})) or (
            "tensor" in names and function.__globals__.get("tensor") is torch.tensor
        )

    def copy(self, function: Function) -> Function:
        """`function`, or what stands in for it, or a copy of it that calls such."""
        replaced = table().of.get(function)
        if replaced is not None:
            return replaced[0]
        if not isinstance(function, types.FunctionType) or not self.reaches(function):
            return function
        known = self._copies.get(function)
        if known is not None:
            return known
        copy = self._copies[function] = self._copied(function)
        return copy

    def _copied(self, function: types.FunctionType) -> Function:
        copy = types.FunctionType(
            function.__code__,
            self._linked(function.__globals__),
            function.__name__,
            function.__defaults__ and tuple(map(self._linked_default, function.__defaults__)),
            function.__closure__,
        )
        if function.__kwdefaults__:
            copy.__kwdefaults__ = {
                name: self._linked_default(value) for name, value in function.__kwdefaults__.items()
            }
        copy.__dict__.update(function.__dict__)
        copy.__module__, copy.__qualname__, copy.__doc__ = (
            function.__module__,
            function.__qualname__,
            function.__doc__,
        )
        copy.__annotations__ = function.__annotations__
        return copy

    def inner(self, function: Function) -> Function:
        """A copy of a function that is itself replaced, for a replacement that calls it in rare cases."""
        found = self._inner.get(function)
        if found is None:
            assert isinstance(function, types.FunctionType)
            found = self._inner[function] = self._copied(function)
        return found

    def _linked_default(self, value: Any) -> Any:
        is_function = isinstance(value, types.FunctionType) and in_library(value.__module__)
        return self.copy(value) if is_function else value

    def _linked(self, names: dict[str, Any]) -> dict[str, Any]:
        """A module's globals, with relinked copies in the place of functions that reach a replacement."""
        known = self._globals.get(id(names))
        if known is not None:
            return known
        linked = dict(names)
        linked.pop("__name__", None)  # by this name a compiler would look the originals up in their module
        self._globals[id(names)] = linked
        self._kept.append(names)  # so that the id stays this module's
        if names.get("__name__") in ASKS_MAX:
            linked["max"] = _max
        for name, value in names.items():
            if value is torch:
                linked[name] = self._torch
            elif value is torch.tensor:
                linked[name] = tensor_without_waiting
            elif isinstance(value, types.FunctionType) and in_library(value.__module__):
                linked[name] = self.copy(value)
        return linked


RELINKER = Relinker()
