"""Gives masks, positions and counts values when they are computed, so that sizes derived from them agree.

Results that select or count (a comparison, the positions of `topk`, integers computed from others) are
computed from drawn values of their arguments. They are *settled*: the sum of a mask, the rows that it selects
and the sizes that they are split into follow from the same elements, and further results are computed. A
tensor has the same drawn values each time. The amount settled in a step is limited; the rest is settled when
something is selected by it (`sizes`), or stays assumed.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gapless import trees
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.dry.guesses.guess import Guess
from gapless.emulation.dry.operator_calls import Compute, pack_results
from gapless.emulation.dry.shapes import DISCRETE, NewTensor, ResultShapes
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

Tensor = torch.Tensor
_MAX_ELEMENTS_PER_OPERATOR = 1 << 22
"""Elements drawn for one operator at most: some 20 ms."""
_MAX_ELEMENTS_PER_STEP = 1 << 27
"""Elements drawn between two steps at most: some 0.5 s."""
_MAX_BYTES_PER_STEP = 128 << 20
"""Bytes of settled results between two steps at most: a script may keep them all."""
_POOL_SIZE = 1 << 20
"""Random numbers drawn once; each tensor uses them from another offset."""
_TENSOR_STRIDE, _PART_STRIDE = 104_729, 7_919
"""Distances between the offsets of tensors, and of parts of a large one: primes, so that few coincide."""
_SEED = 20
"""Any fixed number: values are the same in each run."""
_SETTLED_BY_RULE = frozenset({"isclose", "argmax", "argmin", "multinomial"})
"""Operators whose rule describes their result better, or cheaper, than drawn arguments would."""


class DrawnValues:
    """Draws values for tensors that have none, within a limit per step."""

    def __init__(self, core: EmulationCore) -> None:
        self._core = core
        self._begins: dict[int, tuple[Guess, int]] = {}
        self._count = 0
        self._tick = -1
        self._elements = self._bytes = 0
        self._normal = self._uniform = torch.empty(0)

    def reserve(self, elements: int, nbytes: int) -> bool:
        """Whether `elements` may be drawn and `nbytes` kept in this step; if so they are counted."""
        tick = self._core.recorder.tick
        if tick != self._tick:
            self._tick, self._elements, self._bytes = tick, _MAX_ELEMENTS_PER_STEP, _MAX_BYTES_PER_STEP
        if elements > min(_MAX_ELEMENTS_PER_OPERATOR, self._elements) or nbytes > self._bytes:
            return False
        self._elements -= elements
        self._bytes -= nbytes
        return True

    def forget(self, key: int) -> None:
        """Forget a storage that no longer exists, by its key."""
        self._begins.pop(key, None)

    def draw_like(self, tensor: Tensor, guess: Guess) -> Tensor:
        """Return a tensor like `tensor` with values drawn from `guess`, the same ones each time."""
        with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
            if guess.exact or tensor.is_complex():
                return torch.full((), guess.mean, dtype=tensor.dtype).expand(tensor.shape)
            storage = tensor.untyped_storage()
            begin = self._begin(storage._cdata, guess)
            whole = storage.nbytes() // tensor.element_size()
            if whole <= 4 * tensor.numel():
                values = self._values(whole, guess, tensor.dtype, begin)
                return values.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
            begin += int(tensor.storage_offset()) * _PART_STRIDE
            return self._values(tensor.numel(), guess, tensor.dtype, begin).view(tensor.shape)

    def _begin(self, key: int, guess: Guess) -> int:
        before = self._begins.get(key)
        if before is not None and before[0] is guess:
            return before[1]
        self._count += 1
        self._begins[key] = guess, self._count * _TENSOR_STRIDE
        return self._count * _TENSOR_STRIDE

    def _values(self, count: int, guess: Guess, dtype: torch.dtype, begin: int) -> Tensor:
        if not self._normal.numel():
            generator = torch.Generator().manual_seed(_SEED)
            half = torch.randn(_POOL_SIZE // 2, generator=generator)
            self._normal = torch.stack([half, -half], 1).view(-1).repeat(2)  # as many above as below
            half = torch.rand(_POOL_SIZE // 2, generator=generator)
            self._uniform = torch.stack([half, 1 - half], 1).view(-1).repeat(2)
        low, high = guess.low, guess.high
        if dtype is torch.bool:
            return _take(self._uniform, count, begin) < guess.mean
        if dtype in DISCRETE and math.isfinite(low + high):
            return (_take(self._uniform, count, begin) * (high - low + 1) + low).floor_().to(dtype)
        values = _take(self._normal, count, begin) * guess.spread + guess.mean
        if low > -math.inf or high < math.inf:
            values.clamp_(low, high)
        return values.to(dtype)


def _take(pool: Tensor, count: int, begin: int) -> Tensor:
    """Return `count` numbers of the pool, from an offset that depends on `begin`."""
    if count <= _POOL_SIZE:
        return pool[begin % _POOL_SIZE :][:count]
    parts = range(0, count, _POOL_SIZE)
    return torch.cat(
        [pool[(begin + n * _PART_STRIDE) % _POOL_SIZE :][: min(_POOL_SIZE, count - n)] for n in parts]
    )


def should_settle(kind: Any, args: tuple[Any, ...], results: ResultShapes) -> bool:
    """Whether an operator's results select or count. What a layer keeps for its gradients does not, and a
    single comparison has its answer from a rule."""
    if kind.heavy or kind.layer or local.backward != HOST:
        return False
    if not kind.written:
        return results.has_discrete
    target = args[0] if kind.written == (0,) and args else None
    return isinstance(target, Tensor) and target.dtype in DISCRETE and target.numel() > 1


def settle(
    values: Any,
    kind: Any,
    compute: Compute,
    index: int,
    args: Any,
    kwargs: dict[str, Any],
    results: ResultShapes,
) -> Any:
    """Return the results, with values if they select or count; NotImplemented if that costs too much."""
    lacking = [tensor for tensor in trees.tensors((args, kwargs)) if values.lacks([tensor])]
    if kind.base in _SETTLED_BY_RULE:
        return _fill_by_rule(values, kind, args, kwargs, results)
    kept = [item for item in results.items if type(item) is NewTensor and item.dtype in DISCRETE]
    nbytes = sum(item.numel * item.dtype.itemsize for item in kept)
    if any(type(item) is list for item in results.items) or not any(
        item.is_floating_point() for item in lacking
    ):
        return NotImplemented  # an unsettled argument, or raw bytes
    if not values.draws.reserve(sum(tensor.numel() for tensor in lacking), nbytes):
        return NotImplemented

    def draw_values(tensor: Tensor) -> Tensor:
        record = values.record_of(tensor)
        if record is None or record.filled:
            return tensor
        return values.draws.draw_like(tensor, record)  # type: ignore[no-any-return]

    drawn_args: Any = args
    if kind.written:
        if values.record_of(args[0]) is not None and not values.fill(args[0]):
            return NotImplemented
        drawn_args = (args[0], *trees.map_tensors(tuple(args[1:]), draw_values))
    else:
        drawn_args = trees.map_tensors(tuple(args), draw_values)
    try:
        out = compute(index, drawn_args, trees.map_tensors(dict(kwargs), draw_values))
    except (RuntimeError, IndexError, ValueError):  # drawn values are invalid arguments
        return NotImplemented
    if kind.written:
        _mark(values, kind, args, kwargs, args[0], 0)
        return out
    flat = [out] if results.kind is None else list(out)
    outs = []
    for n, (item, result) in enumerate(zip(results.items, flat, strict=True)):
        if type(item) is NewTensor and item.dtype in DISCRETE:
            _mark(values, kind, args, kwargs, result, n)
            outs.append(result)
        else:
            outs.append(values._new_result(kind, args, kwargs, item, n))
    return pack_results(results.kind, outs, args, kwargs)


def _fill_by_rule(values: Any, kind: Any, args: Any, kwargs: dict[str, Any], results: ResultShapes) -> Any:
    item = results.items[0]
    if type(item) is not NewTensor or not values.draws.reserve(item.numel, item.numel * item.dtype.itemsize):
        return NotImplemented
    result = values._new_result(kind, args, kwargs, item, 0)
    values.fill(result)
    return result


def _mark(values: Any, kind: Any, args: Any, kwargs: dict[str, Any], result: Tensor, position: int) -> None:
    values.mark(result, values._guess_result(kind, args, kwargs, result, position).copy_as_filled())
