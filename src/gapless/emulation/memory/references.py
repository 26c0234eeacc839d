"""Who holds what: a walk from the program's names through its objects and autograd graphs to storages.

Nothing of the program's runs for it: no property, no hook of a saved tensor, no method of a user's class.
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

from gapless.emulation.support.stacks import is_own, library_of

MOST_OBJECTS = 300_000
"""Objects that a walk looks at, at most: half a second."""
_MOST_PARTS = 4_000
"""Entries of one container that are looked at, at most: the first and the last of them."""
_OPTIMIZED = 0x1
"""The flag of code whose variables do not live in a dictionary."""
_OWN_LOCALS = sys.version_info < (3, 13)
"""Whether a frame keeps the dictionary in which it hands out its variables, and so what they held."""
_NOT_HELD = 3
"""References to such a dictionary if only its frame has it: the frame's, and two of whoever counts."""
_SKIPPED = (ModuleType, CodeType, BuiltinFunctionType, str, bytes, int, float, complex, type(None))


class Edge(NamedTuple):
    """How a value is reached from the one that holds it.

    `label` continues the holder's name (``.bank``, ``["loss"]``, ``bank`` for a variable; "" where the
    program has no name for it); `graph` says that it is reached through an autograd graph.
    """

    label: str
    value: Any
    graph: bool = False
    node: bool = False


class Walk:
    """Values in the order in which they are reached, each with the one that it is reached from first.

    `wanted` are the keys of storages; `leaves` gives for each that is reached the position of the tensor
    that has it, and `also` where else a tensor or a container is reached from. The walk holds what it has
    reached: it is not to be kept.
    """

    def __init__(self, wanted: Collection[int]) -> None:
        self.wanted = wanted
        self.values: list[Any] = []
        self.parents: list[int] = []
        self.edges: list[tuple[str, bool]] = []
        self.leaves: dict[int, int] = {}
        self.also: dict[int, list[tuple[int, tuple[str, bool]]]] = {}
        self._seen: dict[int, int] = {}
        self._queue: deque[int] = deque()
        self._nodes: set[int] = set()
        self._saved: dict[type, tuple[str, ...]] = {}

    def add(self, edge: Edge, parent: int = -1) -> None:
        """Reach a value, unless it is reached already or holds nothing."""
        value, key = edge.value, id(edge.value)
        if issubclass(type(value), _SKIPPED):
            return
        if (before := self._seen.get(key)) is not None:
            if parent >= 0 and issubclass(type(value), _SHARED) and not edge.graph:
                self.also.setdefault(before, []).append((parent, (edge.label, edge.graph)))
            return
        if len(self.values) >= MOST_OBJECTS:
            return
        position = len(self.values)
        self._seen[key] = position
        self.values.append(value)
        self.parents.append(parent)
        self.edges.append((edge.label, edge.graph))
        if edge.node:
            self._nodes.add(position)
        self._queue.append(position)

    def go(self) -> None:
        """Reach all that is reachable, what is near first, until all that is wanted is reached."""
        while self._queue and len(self.leaves) < len(self.wanted):
            position = self._queue.popleft()
            value = self.values[position]
            if position in self._nodes:
                parts: Iterable[Edge] = self._of_node(value)
            elif issubclass(type(value), torch.Tensor):
                self._is_leaf(position, value)
                parts = _of_tensor(value)
            else:
                parts = parts_of(value)
            with contextlib.suppress(RuntimeError):  # another thread changes it
                for edge in parts:
                    self.add(edge, position)

    def _is_leaf(self, position: int, tensor: Any) -> None:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            key = tensor.untyped_storage()._cdata
            if key in self.wanted:
                self.leaves.setdefault(key, position)

    def _of_node(self, node: Any) -> Iterator[Edge]:
        """What an autograd node holds: saved tensors as they were packed, and the nodes behind it."""
        names = self._saved.get(type(node))
        if names is None:
            names = tuple(name for name in dir(type(node)) if name.startswith("_raw_saved"))
            self._saved[type(node)] = names
        for name in names:
            with contextlib.suppress(RuntimeError, AttributeError):
                saved = getattr(node, name)
                for one in saved if isinstance(saved, (list, tuple)) else (saved,):
                    yield Edge("", one.data, graph=True)
        for before, _ in node.next_functions:
            if before is not None:
                yield Edge("", before, graph=True, node=True)
        if (variable := getattr(node, "variable", None)) is not None:
            yield Edge("", variable, graph=True)
        for value in vars(node).values() if hasattr(node, "__dict__") else ():
            yield Edge("", value, graph=True)


def _of_tensor(tensor: Any) -> Iterator[Edge]:
    if (node := tensor.grad_fn) is not None:
        yield Edge("", node, graph=True, node=True)
    elif tensor.is_leaf and (grad := tensor.grad) is not None:
        yield Edge(".grad", grad)
    for name, value in object.__getattribute__(tensor, "__dict__").items():
        yield Edge(f".{name}", value)


def parts_of(value: Any) -> Iterator[Edge]:
    """What a value holds, other than a tensor."""
    kind = type(value)
    if issubclass(kind, dict):
        entries = _ends(dict.items(value), dict.__len__(value))
        yield from (Edge(_key(key), part) for key, part in entries)
    elif base := next((base for base in _CONTAINERS if issubclass(kind, base)), None):
        yield from (Edge("", part) for part in _ends(base.__iter__(value), base.__len__(value)))
    elif issubclass(kind, FunctionType):
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # it is empty
                yield Edge(name, cell.cell_contents)
        yield from (Edge("", part) for part in (value.__defaults__, value.__kwdefaults__))
        yield from (Edge(f".{name}", part) for name, part in vars(value).items())
    elif issubclass(kind, (GeneratorType, CoroutineType, AsyncGeneratorType, TracebackType, FrameType)):
        yield from _of_running(value)
    elif issubclass(kind, type):
        if _is_users(value):
            yield from (Edge(f".{name}", part) for name, part in list(vars(value).items()))
    elif not (kind.__module__ or "").startswith("gapless."):
        yield from _of_instance(value)


def _ends(parts: Iterable[Any], length: int) -> Iterable[Any]:
    """The parts of a container; of a long one only the first and the last."""
    if length <= 2 * _MOST_PARTS:
        return list(parts)
    iterator = iter(parts)
    first = list(islice(iterator, _MOST_PARTS))
    return [*first, *islice(iterator, length - 2 * _MOST_PARTS, None)]


def _key(key: object) -> str:
    return f'["{key}"]' if type(key) is str else f"[{key}]" if type(key) is int else "[…]"


def _of_running(value: Any) -> Iterator[Edge]:
    """Variables of a generator that waits, or of the frames that an exception holds."""
    frame = value if type(value) is FrameType else None
    for name in ("gi_frame", "cr_frame", "ag_frame", "tb_frame"):
        frame = getattr(value, name, frame)
    if frame is not None:
        yield from (Edge(name, part) for name, part in variables(frame))
    if type(value) is TracebackType:
        yield Edge("", value.tb_next)


def variables(frame: FrameType) -> list[tuple[str, Any]]:
    """The variables of a running function; the frame keeps none of them longer for it."""
    held = frame.f_locals
    found = list(held.items())
    if _OWN_LOCALS and frame.f_code.co_flags & _OPTIMIZED and sys.getrefcount(held) <= _NOT_HELD:
        held.clear()
    return found


def _is_users(kind: type) -> bool:
    """Whether a class is of the program's own code."""
    if kind.__module__ == "__main__" or kind.__module__ not in sys.modules:
        return True
    file = getattr(sys.modules[kind.__module__], "__file__", None)
    return isinstance(file, str) and not is_own(file) and not library_of(file)


def _of_instance(value: Any) -> Iterator[Edge]:
    """Attributes, in the dictionary and in slots, and what an object of C holds."""
    kind = type(value)
    held: dict[str, Any] | None = None
    with contextlib.suppress(AttributeError, TypeError):
        held = object.__getattribute__(value, "__dict__")
    if held is not None and type(held) is dict:
        for name, part in list(held.items()):
            if name in _MODULE_TABLES and issubclass(kind, torch.nn.Module):
                yield from (Edge(f".{inner}", one) for inner, one in (part or {}).items())
            else:
                yield Edge(f".{name}", part)
    for base in kind.__mro__[:-1]:
        for name, slot in vars(base).items():
            if type(slot) is MemberDescriptorType:
                with contextlib.suppress(AttributeError):
                    yield Edge(f".{name}", slot.__get__(value))
    if kind.__module__ == "numpy" and getattr(getattr(value, "dtype", None), "hasobject", False):
        yield from (Edge("", one) for one in _ends(value.flat, value.size))
    for one in gc.get_referents(value):
        if one is not held and one is not kind:
            yield Edge("", one)


_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_SHARED = (torch.Tensor, *_CONTAINERS, dict)
"""What two names may both lead to: a buffer, and the sample that was drawn from it."""
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""Where a module keeps what the program knows as its attributes."""
