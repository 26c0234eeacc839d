"""Masks, positions and counts get values when they are computed, so that all sizes derived from them agree.

What chooses or counts something (a comparison, the positions of `topk`, whole numbers made of others) is
computed from drawn values of its arguments. It is *settled*: the sum of a mask, the rows that it selects and
the sizes that they are split into come of the same elements, and whatever is computed from it is computed.
The same tensor has the same drawn values each time. How much is settled in a step is limited; what is beyond
the limit is settled where something is selected by it (`sizes.settle`), or stays assumed.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gapless import trees
from gapless.emulation.core.core import Core
from gapless.emulation.dry.calls import Compute, packed
from gapless.emulation.dry.guesses.guess import Guess
from gapless.emulation.dry.shapes import DISCRETE, New, Results
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

Tensor = torch.Tensor
_ELEMENTS_AT_ONCE = 1 << 22
"""Elements that are drawn for one operator at most: some 20 ms."""
_ELEMENTS_PER_STEP = 1 << 27
"""Elements that are drawn between two steps at most: some 0.5 s."""
_BYTES_PER_STEP = 128 << 20
"""Bytes of settled results between two steps at most: a script may keep them all."""
_POOL = 1 << 20
"""Random numbers that are drawn once, and used from another place on for each tensor."""
_SHIFT, _NEXT = 104_729, 7_919
"""How far apart the places are at which tensors, and parts of a large one, begin: primes, so that few meet
one another."""
_SEED = 20
_INDEPENDENT = frozenset({"isclose", "argmax", "argmin", "multinomial"})
"""Operators whose rule tells more of their result than drawn arguments would, or tells it at less cost."""


class Draws:
    """Values that stand for those of tensors which have none, and how many of them a step may still use."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._begins: dict[int, tuple[Guess, int]] = {}
        self._count = 0
        self._tick = -1
        self._elements = self._bytes = 0
        self._normal = self._uniform = torch.empty(0)

    def affords(self, elements: int, nbytes: int) -> bool:
        """Whether so many elements may be drawn and so many bytes be kept; they count for this step then."""
        tick = self._core.recorder.tick
        if tick != self._tick:
            self._tick, self._elements, self._bytes = tick, _ELEMENTS_PER_STEP, _BYTES_PER_STEP
        if elements > min(_ELEMENTS_AT_ONCE, self._elements) or nbytes > self._bytes:
            return False
        self._elements -= elements
        self._bytes -= nbytes
        return True

    def forget(self, key: int) -> None:
        """The storage of that number no longer exists."""
        self._begins.pop(key, None)

    def like(self, tensor: Tensor, guess: Guess) -> Tensor:
        """A tensor like `tensor` with values such as `guess` says, the same ones each time."""
        with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
            if guess.exact or tensor.is_complex():
                return torch.full((), guess.mean, dtype=tensor.dtype).expand(tensor.shape)
            storage = tensor.untyped_storage()
            begin = self._begin(storage._cdata, guess)
            whole = storage.nbytes() // tensor.element_size()
            if whole <= 4 * tensor.numel():
                values = self._values(whole, guess, tensor.dtype, begin)
                return values.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
            begin += int(tensor.storage_offset()) * _NEXT
            return self._values(tensor.numel(), guess, tensor.dtype, begin).view(tensor.shape)

    def _begin(self, key: int, guess: Guess) -> int:
        before = self._begins.get(key)
        if before is not None and before[0] is guess:
            return before[1]
        self._count += 1
        self._begins[key] = guess, self._count * _SHIFT
        return self._count * _SHIFT

    def _values(self, count: int, guess: Guess, dtype: torch.dtype, begin: int) -> Tensor:
        if not self._normal.numel():
            generator = torch.Generator().manual_seed(_SEED)
            half = torch.randn(_POOL // 2, generator=generator)
            self._normal = torch.stack([half, -half], 1).view(-1).repeat(2)  # as many above as below
            half = torch.rand(_POOL // 2, generator=generator)
            self._uniform = torch.stack([half, 1 - half], 1).view(-1).repeat(2)
        low, high = guess.low, guess.high
        if dtype is torch.bool:
            return _from(self._uniform, count, begin) < guess.mean
        if dtype in DISCRETE and math.isfinite(low + high):
            return (_from(self._uniform, count, begin) * (high - low + 1) + low).floor_().to(dtype)
        values = _from(self._normal, count, begin) * guess.spread + guess.mean
        if low > -math.inf or high < math.inf:
            values.clamp_(low, high)
        return values.to(dtype)


def _from(pool: Tensor, count: int, begin: int) -> Tensor:
    """So many numbers of the pool, from a place on that depends on `begin`."""
    if count <= _POOL:
        return pool[begin % _POOL :][:count]
    parts = range(0, count, _POOL)
    return torch.cat([pool[(begin + n * _NEXT) % _POOL :][: min(_POOL, count - n)] for n in parts])


def settles(kind: Any, args: tuple[Any, ...], results: Results) -> bool:
    """Whether an operator makes something that chooses or counts: what a layer keeps for its gradients does
    not, and of a single comparison the rule for it says which answer it has."""
    if kind.heavy or kind.layer or local.backward != HOST:
        return False
    if not kind.written:
        return results.discrete
    target = args[0] if kind.written == (0,) and args else None
    return isinstance(target, Tensor) and target.dtype in DISCRETE and target.numel() > 1


def settled(
    values: Any, kind: Any, compute: Compute, index: int, args: Any, kwargs: dict[str, Any], results: Results
) -> Any:
    """The results with values where they choose or count; NotImplemented where that would be too much."""
    lacking = [one for one in trees.tensors((args, kwargs)) if values.lacks([one])]
    if kind.base in _INDEPENDENT:
        return _by_rule(values, kind, args, kwargs, results)
    kept = [one for one in results.items if type(one) is New and one.dtype in DISCRETE]
    nbytes = sum(one.numel * one.dtype.itemsize for one in kept)
    if any(type(one) is list for one in results.items) or not any(one.is_floating_point() for one in lacking):
        return NotImplemented  # what was too much to be settled, or bytes of something
    if not values.draws.affords(sum(one.numel() for one in lacking), nbytes):
        return NotImplemented

    def stood(tensor: Tensor) -> Tensor:
        record = values.of(tensor)
        if record is None or record.filled:
            return tensor
        return values.draws.like(tensor, record)  # type: ignore[no-any-return]

    given: Any = args
    if kind.written:
        if values.of(args[0]) is not None and not values.fill(args[0]):
            return NotImplemented
        given = (args[0], *trees.mapped(tuple(args[1:]), stood))
    else:
        given = trees.mapped(tuple(args), stood)
    try:
        out = compute(index, given, trees.mapped(dict(kwargs), stood))
    except (RuntimeError, IndexError, ValueError):  # drawn values are not what it can be computed with
        return NotImplemented
    if kind.written:
        _mark(values, kind, args, kwargs, args[0], 0)
        return out
    flat = [out] if results.kind is None else list(out)
    outs = []
    for n, (item, one) in enumerate(zip(results.items, flat, strict=True)):
        if type(item) is New and item.dtype in DISCRETE:
            _mark(values, kind, args, kwargs, one, n)
            outs.append(one)
        else:
            outs.append(values._new(kind, args, kwargs, item, n))
    return packed(results.kind, outs, args, kwargs)


def _by_rule(values: Any, kind: Any, args: Any, kwargs: dict[str, Any], results: Results) -> Any:
    item = results.items[0]
    if type(item) is not New or not values.draws.affords(item.numel, item.numel * item.dtype.itemsize):
        return NotImplemented
    made = values._new(kind, args, kwargs, item, 0)
    values.fill(made)
    return made


def _mark(values: Any, kind: Any, args: Any, kwargs: dict[str, Any], result: Tensor, position: int) -> None:
    values.mark(result, values._guessed(kind, args, kwargs, result, position).as_filled())
