"""Find which objects hold which storages: walk from the program's names through objects and autograd graphs.

The walk runs no code of the program: no property, no hook of a saved tensor, no method of a user's class.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    ModuleType,
    TracebackType,
)
from typing import Any, NamedTuple

import torch

from gapless.emulation.support.stacks import is_own, library_of, variables

MAX_OBJECTS = 300_000
"""Objects that a walk visits at most: half a second."""
_MAX_HALF = 4_000
"""Half the entries visited of a long container: so many first and so many last ones."""
_SKIPPED = (ModuleType, CodeType, BuiltinFunctionType, str, bytes, int, float, complex, type(None))


class Edge(NamedTuple):
    """A reference from a holder to a value.

    `label` continues the holder's name (``.bank``, ``["loss"]``, ``bank`` for a variable; "" if the program
    has no name for it); `graph`: through an autograd graph; `node`: the value is an autograd node.
    """

    label: str
    value: Any
    graph: bool = False
    node: bool = False


class Walk:
    """Values in the order in which they are reached, each with its first holder.

    `wanted` are the keys of storages; `leaves` maps each reached key to the position of its tensor, and
    `also` maps positions of tensors and containers to their further holders. The walk keeps all values alive:
    drop it after use.
    """

    def __init__(self, wanted: Collection[int]) -> None:
        self.wanted = wanted
        self.values: list[Any] = []
        self.parents: list[int] = []
        self.edges: list[tuple[str, bool]] = []
        self.leaves: dict[int, int] = {}
        self.also: dict[int, list[tuple[int, tuple[str, bool]]]] = {}
        self._positions: dict[int, int] = {}
        self._queue: deque[int] = deque()
        self._nodes: set[int] = set()
        self._saved: dict[type, tuple[str, ...]] = {}

    def add(self, edge: Edge, parent: int = -1) -> None:
        """Visit a value, unless it was visited or holds nothing."""
        value, key = edge.value, id(edge.value)
        if issubclass(type(value), _SKIPPED):
            return
        if (before := self._positions.get(key)) is not None:
            if parent >= 0 and issubclass(type(value), _SHARED) and not edge.graph:
                self.also.setdefault(before, []).append((parent, (edge.label, edge.graph)))
            return
        if len(self.values) >= MAX_OBJECTS:
            return
        position = len(self.values)
        self._positions[key] = position
        self.values.append(value)
        self.parents.append(parent)
        self.edges.append((edge.label, edge.graph))
        if edge.node:
            self._nodes.add(position)
        self._queue.append(position)

    def go(self) -> None:
        """Visit everything reachable, breadth first, until all wanted storages are reached."""
        while self._queue and len(self.leaves) < len(self.wanted):
            position = self._queue.popleft()
            value = self.values[position]
            if position in self._nodes:
                parts: Iterable[Edge] = self._of_node(value)
            elif issubclass(type(value), torch.Tensor):
                self._note_leaf(position, value)
                parts = _tensor_references(value)
            else:
                parts = references_of(value)
            with contextlib.suppress(RuntimeError):  # another thread changes it
                for edge in parts:
                    self.add(edge, position)

    def _note_leaf(self, position: int, tensor: Any) -> None:
        """Note `tensor` as the leaf of its storage, if that is wanted."""
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            key = tensor.untyped_storage()._cdata
            if key in self.wanted:
                self.leaves.setdefault(key, position)

    def _of_node(self, node: Any) -> Iterator[Edge]:
        """Yield the references of an autograd node: saved tensors as packed, and the next nodes."""
        names = self._saved.get(type(node))
        if names is None:
            names = tuple(name for name in dir(type(node)) if name.startswith("_raw_saved"))
            self._saved[type(node)] = names
        for name in names:
            with contextlib.suppress(RuntimeError, AttributeError):
                saved = getattr(node, name)
                for saved_tensor in saved if isinstance(saved, (list, tuple)) else (saved,):
                    yield Edge("", saved_tensor.data, graph=True)
        for before, _ in node.next_functions:
            if before is not None:
                yield Edge("", before, graph=True, node=True)
        if (variable := getattr(node, "variable", None)) is not None:
            yield Edge("", variable, graph=True)
        for value in vars(node).values() if hasattr(node, "__dict__") else ():
            yield Edge("", value, graph=True)


def _tensor_references(tensor: Any) -> Iterator[Edge]:
    """Yield a tensor's autograd node or gradient, and its attributes."""
    if (node := tensor.grad_fn) is not None:
        yield Edge("", node, graph=True, node=True)
    elif tensor.is_leaf and (grad := tensor.grad) is not None:
        yield Edge(".grad", grad)
    for name, value in object.__getattribute__(tensor, "__dict__").items():
        yield Edge(f".{name}", value)


def references_of(value: Any) -> Iterator[Edge]:
    """Yield the references of a value that is not a tensor."""
    kind = type(value)
    if issubclass(kind, dict):
        entries = _visited_parts(dict.items(value), dict.__len__(value))
        yield from (Edge(_entry_label(key), part) for key, part in entries)
    elif base := next((base for base in _CONTAINERS if issubclass(kind, base)), None):
        yield from (Edge("", part) for part in _visited_parts(base.__iter__(value), base.__len__(value)))
    elif issubclass(kind, FunctionType):
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # it is empty
                yield Edge(name, cell.cell_contents)
        yield from (Edge("", part) for part in (value.__defaults__, value.__kwdefaults__))
        yield from (Edge(f".{name}", part) for name, part in vars(value).items())
    elif issubclass(kind, (GeneratorType, CoroutineType, AsyncGeneratorType, TracebackType, FrameType)):
        yield from _frame_references(value)
    elif issubclass(kind, type):
        if _is_user_class(value):
            yield from (Edge(f".{name}", part) for name, part in list(vars(value).items()))
    elif not (kind.__module__ or "").startswith("gapless."):
        yield from _instance_references(value)


def _visited_parts(parts: Iterable[Any], length: int) -> Iterable[Any]:
    """Return the parts of a container; of a long one only the first and the last."""
    if length <= 2 * _MAX_HALF:
        return list(parts)
    iterator = iter(parts)
    first = list(islice(iterator, _MAX_HALF))
    return [*first, *islice(iterator, length - 2 * _MAX_HALF, None)]


def _entry_label(key: object) -> str:
    return f'["{key}"]' if type(key) is str else f"[{key}]" if type(key) is int else "[…]"


def _frame_references(value: Any) -> Iterator[Edge]:
    """Yield the variables of a suspended generator, or of an exception's frames."""
    frame = value if type(value) is FrameType else None
    for name in ("gi_frame", "cr_frame", "ag_frame", "tb_frame"):
        frame = getattr(value, name, frame)
    if frame is not None:
        yield from (Edge(name, part) for name, part in list(variables(frame).items()))
    if type(value) is TracebackType:
        yield Edge("", value.tb_next)


def _is_user_class(kind: type) -> bool:
    """Whether a class is defined in the program's own code."""
    if kind.__module__ == "__main__" or kind.__module__ not in sys.modules:
        return True
    file = getattr(sys.modules[kind.__module__], "__file__", None)
    return isinstance(file, str) and not is_own(file) and not library_of(file)


def _instance_references(value: Any) -> Iterator[Edge]:
    """Yield attributes, from the dictionary and slots, and the references of an object implemented in C."""
    kind = type(value)
    held: dict[str, Any] | None = None
    with contextlib.suppress(AttributeError, TypeError):
        held = object.__getattribute__(value, "__dict__")
    if held is not None and type(held) is dict:
        for name, part in list(held.items()):
            if name in _MODULE_TABLES and issubclass(kind, torch.nn.Module):
                yield from (Edge(f".{attribute}", referent) for attribute, referent in (part or {}).items())
            else:
                yield Edge(f".{name}", part)
    for base in kind.__mro__[:-1]:
        for name, slot in vars(base).items():
            if type(slot) is MemberDescriptorType:
                with contextlib.suppress(AttributeError):
                    yield Edge(f".{name}", slot.__get__(value))
    if kind.__module__ == "numpy" and getattr(getattr(value, "dtype", None), "hasobject", False):
        yield from (Edge("", referent) for referent in _visited_parts(value.flat, value.size))
    for referent in gc.get_referents(value):
        if referent is not held and referent is not kind:
            yield Edge("", referent)


_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_SHARED = (torch.Tensor, *_CONTAINERS, dict)
"""Types of values that are recorded under each holder: a buffer, and the sample drawn from it."""
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""Dictionaries in which a module stores the attributes that the program sees."""
