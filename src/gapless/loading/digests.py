"""Digests of items by content, and of the states of random number generators."""

from __future__ import annotations

import dataclasses
import pickle
import random
import types
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy
import torch
from torch import Tensor

_MAX_OBJECTS_VISITED = 2000
"""Objects searched for generators, to bound the time; a mapping with more entries is data."""
_MAX_PARTS_VISITED = 64
"""Entries searched of each list or mapping: later ones are like the first."""
_MAX_DIGESTED_BYTES = 1 << 20
"""Larger arrays are data."""
_GENERATOR_TYPES = (numpy.random.Generator, numpy.random.RandomState, random.Random, torch.Generator)


class NoContent(Exception):
    """An item that cannot be identified by its content."""


def digest_item(item: Any) -> int:
    """Return 64 bits that depend only on the content of `item`, equally in every process.

    Raises:
        NoContent: its content cannot be read.
    """
    digest = blake2b(digest_size=8)
    _feed(item, digest.update)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _feed(item: Any, update: Any) -> None:
    kind = type(item)
    update(kind.__name__.encode())
    if isinstance(item, Tensor):
        _feed_tensor(item, update)
    elif isinstance(item, numpy.ndarray) and item.dtype != object:
        update(f"{item.dtype}{item.shape}".encode())
        update(numpy.ascontiguousarray(item).tobytes())
    elif isinstance(item, (bytes, bytearray)):
        update(bytes(item))
    elif item is None or isinstance(item, (str, int, float, complex, numpy.generic)):
        update(repr(item).encode("utf-8", "backslashreplace"))
    elif isinstance(item, Mapping):
        for key, part in item.items():
            _feed(key, update)
            _feed(part, update)
    elif isinstance(item, (list, tuple)):
        for part in item:
            _feed(part, update)
    elif dataclasses.is_dataclass(item):
        for field in dataclasses.fields(item):
            _feed(getattr(item, field.name), update)
    else:
        _feed_other(item, update)


def _feed_tensor(item: Tensor, update: Any) -> None:
    if item.layout != torch.strided or item.is_quantized:
        raise NoContent(str(item.layout))
    update(f"{item.dtype}{tuple(item.shape)}".encode())
    flat = item.detach().cpu().contiguous().reshape(-1)
    update(flat.view(torch.uint8).numpy().tobytes())


def _feed_other(item: Any, update: Any) -> None:
    if hasattr(item, "tobytes"):  # images of Pillow
        update(item.tobytes())
        return
    try:
        update(pickle.dumps(item, protocol=4))
    except Exception as error:
        raise NoContent(type(item).__name__) from error


def digest_states(dataset: Any) -> dict[str, str]:
    """Return digests of the random number generators that `dataset` can use, by their names in code."""
    states: dict[str, Any] = {
        "random": random.getstate(),
        "numpy.random": numpy.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    for name, generator in find_generators("self", dataset):
        states[name] = _state(generator)
    return {name: digest_state(state) for name, state in states.items()}


def digest_memory(dataset: Any) -> dict[str, str]:
    """Return `digest_states`, and what shows that `dataset` changed: its numbers, texts, sizes and small
    arrays, by their names in code.
    """
    states = digest_states(dataset)
    for name, value in _walk("self", dataset):
        if isinstance(value, (str, int, float)):
            states[name] = repr(value)
        elif isinstance(value, Tensor):
            states[name] = f"{tuple(value.shape)} {value._version}"
        elif isinstance(value, numpy.ndarray) and value.nbytes <= _MAX_DIGESTED_BYTES:
            states[name] = digest_state(value)
        elif isinstance(value, (Mapping, list, tuple, set)):
            states[name] = str(len(value))
    return states


def find_generators(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the generators that `value` holds in attributes, lists and dicts, nearest first."""
    return ((at, part) for at, part in _walk(name, value) if isinstance(part, _GENERATOR_TYPES))


def _walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield `value`, and what it holds in attributes, lists and dicts, nearest first; a generator's parts
    are left out.
    """
    waiting: list[tuple[str, Any]] = [(name, value)]
    visited: set[int] = set()
    while waiting and len(visited) < _MAX_OBJECTS_VISITED:
        name, value = waiting.pop(0)
        if id(value) in visited and not isinstance(value, (str, int, float)):  # equal numbers are one object
            continue
        visited.add(id(value))
        yield name, value
        if not isinstance(value, _GENERATOR_TYPES):
            waiting += _parts_of(name, value)


def digest_local_states(iterator: Any) -> dict[str, str]:
    """Return digests of generators that are local variables of a running generator function."""
    frame = getattr(iterator, "gi_frame", None)
    if not isinstance(frame, types.FrameType):
        return {}
    return {
        name: digest_state(_state(value))
        for name, value in frame.f_locals.items()
        if isinstance(value, _GENERATOR_TYPES)
    }


def _parts_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (str, bytes, int, float, Tensor, numpy.ndarray, type, types.ModuleType)):
        return
    if isinstance(value, Mapping):
        for key, part in (
            list(value.items())[:_MAX_PARTS_VISITED] if len(value) <= _MAX_OBJECTS_VISITED else ()
        ):
            yield f"{name}[{key!r}]", part
    elif isinstance(value, (list, tuple)):
        for at, part in enumerate(value[:_MAX_PARTS_VISITED]):
            yield f"{name}[{at}]", part
    elif isinstance(getattr(value, "__dict__", None), dict):
        for key, part in list(vars(value).items()):
            yield f"{name}.{key}", part


def _state(generator: Any) -> Any:
    if isinstance(generator, numpy.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        # SystemRandom has no state: each of its numbers is new
        return object() if isinstance(generator, random.SystemRandom) else generator.getstate()
    return generator.get_state()


def digest_state(state: Any) -> str:
    """Return a digest of a generator's state."""
    if isinstance(state, Tensor):
        state = state.numpy().tobytes()
    return blake2b(repr(_with_arrays_as_bytes(state)).encode(), digest_size=8).hexdigest()


def _with_arrays_as_bytes(state: Any) -> Any:
    """Return `state` with arrays as bytes, as their repr leaves out the middle."""
    if isinstance(state, numpy.ndarray):
        return state.tobytes()
    if isinstance(state, dict):
        return {key: _with_arrays_as_bytes(part) for key, part in state.items()}
    if isinstance(state, (list, tuple)):
        return tuple(_with_arrays_as_bytes(part) for part in state)
    return state
