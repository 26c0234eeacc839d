"""Digests: of items, by their content; of the states of random number generators."""

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

_NODES = 2000
_PARTS = 64
_FAMILIES = (numpy.random.Generator, numpy.random.RandomState, random.Random, torch.Generator)


class NoContent(Exception):
    """An item cannot be told by its content."""


def of_item(item: Any) -> int:
    """64 bits of the content of `item`: equal for equal content, in every process.

    Raises:
        NoContent: it is of a kind that has none that can be read.
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


def of_states(dataset: Any) -> dict[str, str]:
    """The states of the random number generators that `dataset` can use, by what they are called in code."""
    states: dict[str, Any] = {
        "random": random.getstate(),
        "numpy.random": numpy.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    for name, generator in generators("self", dataset):
        states[name] = _state(generator)
    return {name: short(state) for name, state in states.items()}


def generators(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The generators that `value` holds, through its attributes, lists and dicts; first come the nearest."""
    waiting: list[tuple[str, Any]] = [(name, value)]
    seen: set[int] = set()
    while waiting and len(seen) < _NODES:
        name, value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _FAMILIES):
            yield name, value
        else:
            waiting += _parts_of(name, value)


def of_locals(iterator: Any) -> dict[str, str]:
    """The states of generators that are local variables of a generator function that is under way."""
    frame = getattr(iterator, "gi_frame", None)
    if not isinstance(frame, types.FrameType):
        return {}
    return {
        name: short(_state(value)) for name, value in frame.f_locals.items() if isinstance(value, _FAMILIES)
    }


def _parts_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (str, bytes, int, float, Tensor, numpy.ndarray, type, types.ModuleType)):
        return
    if isinstance(value, Mapping):
        for key, part in list(value.items())[:_PARTS] if len(value) <= _NODES else ():
            yield f"{name}[{key!r}]", part
    elif isinstance(value, (list, tuple)):
        for at, part in enumerate(value[:_PARTS]):
            yield f"{name}[{at}]", part
    elif isinstance(getattr(value, "__dict__", None), dict):
        for key, part in list(vars(value).items()):
            yield f"{name}.{key}", part


def _state(generator: Any) -> Any:
    if isinstance(generator, numpy.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        # SystemRandom has no state: each of its numbers is new.
        return object() if isinstance(generator, random.SystemRandom) else generator.getstate()
    return generator.get_state()


def short(state: Any) -> str:
    """A digest of a generator's state."""
    if isinstance(state, Tensor):
        state = state.numpy().tobytes()
    return blake2b(repr(_plain(state)).encode(), digest_size=8).hexdigest()


def _plain(state: Any) -> Any:
    """`state` with arrays as bytes: their text leaves out the middle."""
    if isinstance(state, numpy.ndarray):
        return state.tobytes()
    if isinstance(state, dict):
        return {key: _plain(part) for key, part in state.items()}
    if isinstance(state, (list, tuple)):
        return tuple(_plain(part) for part in state)
    return state
