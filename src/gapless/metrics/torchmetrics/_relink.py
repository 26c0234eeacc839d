"""Copy TorchMetrics functions so that the copies call replacements, and are otherwise the same code.

TorchMetrics is not patched. A function that reaches a replaced function is copied with globals in which that
name means the replacement; so are the functions in between. Other callers get the originals.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, KeysView
from typing import Any

import torch

from gapless.metrics.torchmetrics._constants import as_tensor_without_waiting, tensor_without_waiting
from gapless.metrics.torchmetrics._registry import Function, fitting_replacements

LIBRARY = "torchmetrics"
FILL_NOTE = "numbers become tensors by a fill on the GPU, not by a copy"


MAX_NOTE = "the greater of two values is chosen on the GPU"
MODULES_WITH_MAX = ("torchmetrics.functional.image.ssim",)
"""Modules that call Python's `max` on tensors, which compares them on the host."""


def in_library(module: str | None) -> bool:
    """Whether a module belongs to TorchMetrics."""
    return bool(module) and (module == LIBRARY or str(module).startswith(LIBRARY + "."))


class _TorchStandIn(types.ModuleType):
    """`torch` as relinked functions see it: the same names, but constants are created without a copy."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _make_torch_stand_in() -> types.ModuleType:
    stand_in = _TorchStandIn("torch")
    stand_in.__dict__.update(
        {name: value for name, value in vars(torch).items() if not name.startswith("__")}
    )
    stand_in.__dict__.update(tensor=tensor_without_waiting, as_tensor=as_tensor_without_waiting)
    return stand_in


def _max_without_wait(*values: Any, **options: Any) -> Any:
    """Python's `max`; of two tensors of one element, without comparing on the host."""
    if options or len(values) != 2 or not all(isinstance(value, torch.Tensor) for value in values):
        return max(*values, **options)
    first, second = values
    return torch.where(second > first, second, first)


def _code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_objects(constant)


def names_in(function: types.FunctionType) -> KeysView[str]:
    """Return the global names and attributes in the code of `function`, and of functions inside it."""
    return dict.fromkeys(name for code in _code_objects(function.__code__) for name in code.co_names).keys()


class Relinker:
    """Copies functions, each once, and records which replacements each one reaches."""

    def __init__(self) -> None:
        self._torch = _make_torch_stand_in()
        self._globals: dict[int, dict[str, Any]] = {}
        self._copies: dict[Function, Function] = {}
        self._inner: dict[Function, Function] = {}
        self._reach: dict[Function, tuple[frozenset[str], frozenset[str]]] = {}
        self._kept: list[dict[str, Any]] = []

    def notes_on_reached(self, function: Function) -> frozenset[str]:
        """Return the report's notes on all replacements that `function` can reach; empty if none."""
        return self._reachable(function)[0]

    def unmatched_reached(self, function: Function) -> frozenset[str]:
        """Return names of functions that `function` can reach and whose source text is not as expected."""
        return self._reachable(function)[1]

    def _reachable(self, function: Function) -> tuple[frozenset[str], frozenset[str]]:
        cached = self._reach.get(function)
        if cached is not None:
            return cached
        notes: set[str] = set()
        unmatched: set[str] = set()
        self._collect_reachable(function, {}, notes, unmatched)
        return self._reach.setdefault(function, (frozenset(notes), frozenset(unmatched)))

    def _collect_reachable(
        self, function: Function, visited: dict[Function, None], notes: set[str], unmatched: set[str]
    ) -> None:
        if function in visited or not isinstance(function, types.FunctionType):
            return
        visited[function] = None
        if function in fitting_replacements().unmatched_functions:
            unmatched.add(function.__name__)
        replaced = fitting_replacements().by_original.get(function)
        if replaced is not None:
            notes.add(replaced[1])
            return
        for default in (function.__defaults__ or ()) + tuple((function.__kwdefaults__ or {}).values()):
            if isinstance(default, types.FunctionType) and in_library(default.__module__):
                self._collect_reachable(default, visited, notes, unmatched)
        names = names_in(function)
        if self._makes_constants(function, names):
            notes.add(FILL_NOTE)
        if "max" in names and function.__module__ in MODULES_WITH_MAX:
            notes.add(MAX_NOTE)
        for name in names:
            value = function.__globals__.get(name)
            if isinstance(value, types.FunctionType) and in_library(value.__module__):
                self._collect_reachable(value, visited, notes, unmatched)

    @staticmethod
    def _makes_constants(function: types.FunctionType, names: KeysView[str]) -> bool:
        uses = function.__globals__.get("torch") is torch and "torch" in names
        return (uses and not names.isdisjoint({"tensor", "as_tensor"})) or (
            "tensor" in names and function.__globals__.get("tensor") is torch.tensor
        )

    def relink(self, function: Function) -> Function:
        """Return the replacement of `function`, or a relinked copy; `function` itself if it reaches none."""
        replaced = fitting_replacements().by_original.get(function)
        if replaced is not None:
            return replaced[0]
        if not isinstance(function, types.FunctionType) or not self.notes_on_reached(function):
            return function
        cached = self._copies.get(function)
        if cached is not None:
            return cached
        relinked = self._copies[function] = self._copy_function(function)
        return relinked

    def _copy_function(self, function: types.FunctionType) -> Function:
        copied = types.FunctionType(
            function.__code__,
            self._relinked_globals(function.__globals__),
            function.__name__,
            function.__defaults__ and tuple(map(self._relinked_default, function.__defaults__)),
            function.__closure__,
        )
        if function.__kwdefaults__:
            copied.__kwdefaults__ = {
                name: self._relinked_default(value) for name, value in function.__kwdefaults__.items()
            }
        copied.__dict__.update(function.__dict__)
        copied.__module__, copied.__qualname__, copied.__doc__ = (
            function.__module__,
            function.__qualname__,
            function.__doc__,
        )
        copied.__annotations__ = function.__annotations__
        return copied

    def relink_replaced(self, function: Function) -> Function:
        """Return a relinked copy of a function that is replaced, for rare cases of its replacement."""
        relinked = self._inner.get(function)
        if relinked is None:
            assert isinstance(function, types.FunctionType)
            relinked = self._inner[function] = self._copy_function(function)
        return relinked

    def _relinked_default(self, value: Any) -> Any:
        is_function = isinstance(value, types.FunctionType) and in_library(value.__module__)
        return self.relink(value) if is_function else value

    def _relinked_globals(self, names: dict[str, Any]) -> dict[str, Any]:
        """Return a module's globals, with relinked copies of functions that reach a replacement."""
        cached = self._globals.get(id(names))
        if cached is not None:
            return cached
        linked = dict(names)
        linked.pop("__name__", None)  # or a compiler would look up the originals in their module
        self._globals[id(names)] = linked
        self._kept.append(names)  # so that the id is not reused
        if names.get("__name__") in MODULES_WITH_MAX:
            linked["max"] = _max_without_wait
        for name, value in names.items():
            if value is torch:
                linked[name] = self._torch
            elif value is torch.tensor:
                linked[name] = tensor_without_waiting
            elif isinstance(value, types.FunctionType) and in_library(value.__module__):
                linked[name] = self.relink(value)
        return linked


RELINKER = Relinker()
