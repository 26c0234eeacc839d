"""`Table`: what stands for the values of the storages that have none.

A storage is in it if its values are not those that the script would have: there are none, they were made up,
or all of them are one number that nobody has written. Everything else has real values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gapless.emulation.core.core import Core
from gapless.emulation.dry import filling
from gapless.emulation.dry.guesses.guess import Guess, anything, constant
from gapless.emulation.dry.reads import Reads
from gapless.emulation.dry.settling import Draws
from gapless.emulation.placement.placement import sparse_parts
from gapless.torch_internals import free_weak_ref, storage_of_weak_ref, weak_ref_expired

Tensor = torch.Tensor
_FIRST_SWEEP = 8192
_SAMPLE = 1024
"""Elements of known values that are looked at."""
_LITTLE = 1 << 20
"""Bytes up to which what comes to the host gets values at once, and not where somebody looks at them."""


class Table:
    """Records by storage; `reads` answers what the CPU asks of them."""

    def __init__(self, core: Core, given: dict[str, float]) -> None:
        self.core = core
        self.records: dict[int, Guess] = {}
        self._weak: dict[int, int] = {}
        self._sweep_at = _FIRST_SWEEP
        self.reads = Reads(core, given)
        self._filler = filling.Filler()
        self.draws = Draws(core)

    def of(self, tensor: Tensor) -> Guess | None:
        """The record of what `tensor` has in place of values; None where it has values."""
        try:
            return self.records.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            inner = stored(tensor)
            return None if inner is tensor else self.of(inner)

    def mark(self, tensor: Tensor, guess: Guess) -> None:
        """The whole storage of `tensor` is like this from now on."""
        storage: Any = stored(tensor).untyped_storage()
        key = storage._cdata
        if key not in self._weak:
            self._weak[key] = storage._weak_ref()
            if len(self._weak) > self._sweep_at:
                self.sweep()
        self.records[key] = guess

    def lacks(self, tensors: Iterable[Tensor]) -> bool:
        """Whether one of them has no values."""
        return any((record := self.of(one)) is not None and not record.filled for one in tensors)

    def written(self, maker: str, tensors: Iterable[Tensor]) -> None:
        """A kernel that was not run has written these."""
        for one in tensors:
            self.mark(one, anything(maker, one.dtype))

    def forget(self, tensor: Tensor) -> None:
        """The storage of `tensor` has real values from now on."""
        self.records.pop(stored(tensor).untyped_storage()._cdata, None)

    def sweep(self) -> None:
        """Forget storages that no longer exist."""
        for key, weak in list(self._weak.items()):
            if weak_ref_expired(weak):
                free_weak_ref(weak)
                del self._weak[key]
                self.records.pop(key, None)
                self.reads.told.pop(key, None)
                self.draws.forget(key)
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._weak))

    def untouched_memory(self, least: int) -> Iterator[tuple[int, int]]:
        """Address and size, in bytes, of each storage of at least so many that holds no values at all."""
        for key, record in list(self.records.items()):
            weak = self._weak.get(key)
            if record.filled or weak is None or weak_ref_expired(weak):
                continue
            storage: Any = storage_of_weak_ref(weak)
            if storage is not None and storage.nbytes() >= least and not storage.is_shared():
                yield storage.data_ptr(), storage.nbytes()

    def clear(self) -> None:
        """Forget everything."""
        for weak in self._weak.values():
            free_weak_ref(weak)
        self._weak.clear()
        self.records.clear()

    def guess_of(self, value: Any) -> Guess | None:
        """What an argument is like: a record, a number, or a summary of known values."""
        if isinstance(value, Tensor):
            found = self.of(value)
            return _summary(value) if found is None else found
        if isinstance(value, (bool, int, float)):
            return constant(float(value))
        if isinstance(value, (list, tuple)) and value:
            return self.guess_of(value[0])
        return None

    def same(self, a: Any, b: Any) -> bool:
        """Whether two arguments are the same elements."""
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            return False
        return a is b or (
            a.untyped_storage()._cdata == b.untyped_storage()._cdata
            and a.storage_offset() == b.storage_offset()
            and a.shape == b.shape
        )

    # -- values that are made up ---------------------------------------------------------------------------

    def fill(self, tensor: Tensor) -> bool:
        """Give the storage of `tensor` values such as its record says; whether it has some now."""
        record = self.of(tensor)
        if record is None or record.filled:
            return True
        if not self._filler.fill(stored(tensor), record):
            return False
        if record.exact:
            self.forget(tensor)
        else:
            self.mark(tensor, record.as_filled())
        return True

    def arrived(self, tensor: Tensor) -> Tensor:
        """`tensor` has come to the host, where anybody may look at its values: most save or reduce it."""
        record = self.of(tensor)
        if (
            record is not None
            and not tensor.is_meta
            and stored(tensor).untyped_storage().nbytes() <= _LITTLE
            and self.fill(tensor)
            and not record.exact
        ):
            self.reads.values(record, tensor.numel())
        return tensor


def stored(tensor: Tensor) -> Tensor:
    """What holds the values: `tensor` itself, or the dense part of a sparse one that does."""
    parts = sparse_parts(tensor)
    return parts[-1] if parts else tensor


def _summary(tensor: Tensor) -> Guess | None:
    """What known values are like: of many, the first ones."""
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_complex() or not tensor.numel():
        return None
    if tensor.numel() == 1:
        value = tensor.detach().item()  # `float` warns of tensors that require gradients
        return constant(value) if not math.isnan(value) else None
    with torch.no_grad():
        some = (
            tensor
            if tensor.numel() <= _SAMPLE
            else tensor.as_strided((_SAMPLE,), (1,))
            if _dense(tensor)
            else None
        )
        if some is None:
            return anything("values", tensor.dtype)
        some = some.to(torch.float64)
        low, high = (float(one) for one in some.aminmax())
        spread, mean = (float(one) for one in torch.std_mean(some))
    if not math.isfinite(mean + spread):
        return Guess(low=low, high=high)
    return Guess(mean, spread, low, high)


def _dense(tensor: Tensor) -> bool:
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return room >= _SAMPLE
