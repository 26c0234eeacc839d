"""`ValueTable`: guesses for storages that have no real values.

A storage is in the table if its values are missing, made up, or one constant that has not been written. All
other storages have real values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.dry import filling
from gapless.emulation.dry.guesses.guess import Guess, anything, constant
from gapless.emulation.dry.reads import Reads
from gapless.emulation.dry.settling import DrawnValues
from gapless.emulation.placement.placement import sparse_parts
from gapless.torch_internals import free_weak_ref, storage_of_weak_ref, weak_ref_expired

Tensor = torch.Tensor
_MIN_RECORDS_TO_SWEEP = 8192
"""Storages before the first sweep: a sweep visits them all."""
_SAMPLE_ELEMENTS = 1024
"""Elements of real values that are summarised: enough for a mean."""
_MAX_EAGER_BYTES = 1 << 20
"""Bytes up to which a copy to the host gets values at once, not only when it is read."""


class ValueTable:
    """The guess of each storage without real values; `reads` answers reads of the CPU."""

    def __init__(self, core: EmulationCore, user_values: dict[str, float]) -> None:
        self.core = core
        self.records: dict[int, Guess] = {}
        self._weak: dict[int, int] = {}
        self._sweep_at = _MIN_RECORDS_TO_SWEEP
        self.reads = Reads(core, user_values)
        self._filler = filling.Filler()
        self.draws = DrawnValues(core)

    def record_of(self, tensor: Tensor) -> Guess | None:
        """Return the guess for the storage of `tensor`; None if it has real values."""
        try:
            return self.records.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            inner = dense_part(tensor)
            return None if inner is tensor else self.record_of(inner)

    def mark(self, tensor: Tensor, guess: Guess) -> None:
        """Set the guess for the whole storage of `tensor`."""
        storage: Any = dense_part(tensor).untyped_storage()
        key = storage._cdata
        if key not in self._weak:
            self._weak[key] = storage._weak_ref()
            if len(self._weak) > self._sweep_at:
                self.sweep()
        self.records[key] = guess

    def lacks(self, tensors: Iterable[Tensor]) -> bool:
        """Whether one of `tensors` has no values, not even made-up ones."""
        return any((record := self.record_of(tensor)) is not None and not record.filled for tensor in tensors)

    def mark_written(self, maker: str, tensors: Iterable[Tensor]) -> None:
        """Set an unknown guess for tensors written by a kernel that was not run."""
        for tensor in tensors:
            self.mark(tensor, anything(maker, tensor.dtype))

    def forget(self, tensor: Tensor) -> None:
        """Remove the guess: the storage of `tensor` has real values now."""
        self.records.pop(dense_part(tensor).untyped_storage()._cdata, None)

    def sweep(self) -> None:
        """Remove storages that no longer exist."""
        for key, weak in list(self._weak.items()):
            if weak_ref_expired(weak):
                free_weak_ref(weak)
                del self._weak[key]
                self.records.pop(key, None)
                self.reads.answers.pop(key, None)
                self.draws.forget(key)
        self._sweep_at = max(_MIN_RECORDS_TO_SWEEP, 2 * len(self._weak))

    def untouched_memory(self, least: int) -> Iterator[tuple[int, int]]:
        """Yield address and size in bytes of each storage of at least `least` bytes without any values."""
        for key, record in list(self.records.items()):
            weak = self._weak.get(key)
            if record.filled or weak is None or weak_ref_expired(weak):
                continue
            storage: Any = storage_of_weak_ref(weak)
            if storage is not None and storage.nbytes() >= least and not storage.is_shared():
                yield storage.data_ptr(), storage.nbytes()

    def clear(self) -> None:
        """Remove all records."""
        for weak in self._weak.values():
            free_weak_ref(weak)
        self._weak.clear()
        self.records.clear()

    def guess_of(self, value: Any) -> Guess | None:
        """Return a guess for an argument: its record, its number, or a summary of its real values."""
        if isinstance(value, Tensor):
            record = self.record_of(value)
            return _summary(value) if record is None else record
        if isinstance(value, (bool, int, float)):
            return constant(float(value))
        if isinstance(value, (list, tuple)) and value:
            return self.guess_of(value[0])
        return None

    def are_same(self, a: Any, b: Any) -> bool:
        """Whether two arguments are the same elements of one storage."""
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            return False
        return a is b or (
            a.untyped_storage()._cdata == b.untyped_storage()._cdata
            and a.storage_offset() == b.storage_offset()
            and a.shape == b.shape
        )

    # -- values that are made up ---------------------------------------------------------------------------

    def fill(self, tensor: Tensor) -> bool:
        """Give the storage of `tensor` values drawn from its guess; return whether it has values now."""
        record = self.record_of(tensor)
        if record is None or record.filled:
            return True
        if not self._filler.fill(dense_part(tensor), record):
            return False
        if record.exact:
            self.forget(tensor)
        else:
            self.mark(tensor, record.copy_as_filled())
        return True

    def fill_arrived(self, tensor: Tensor) -> Tensor:
        """Fill a small `tensor` that was copied to the host, where it will probably be read; return it."""
        record = self.record_of(tensor)
        if (
            record is not None
            and not tensor.is_meta
            and dense_part(tensor).untyped_storage().nbytes() <= _MAX_EAGER_BYTES
            and self.fill(tensor)
            and not record.exact
        ):
            self.reads.values(record, tensor.numel())
        return tensor


def dense_part(tensor: Tensor) -> Tensor:
    """Return the tensor that holds the values: `tensor` itself, or the dense part of a sparse one."""
    parts = sparse_parts(tensor)
    return parts[-1] if parts else tensor


def _summary(tensor: Tensor) -> Guess | None:
    """Return a guess from real values: from the first ones if there are many."""
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_complex() or not tensor.numel():
        return None
    if tensor.numel() == 1:
        value = tensor.detach().item()  # `float` warns of tensors that require gradients
        return constant(value) if not math.isnan(value) else None
    with torch.no_grad():
        sample = (
            tensor
            if tensor.numel() <= _SAMPLE_ELEMENTS
            else tensor.as_strided((_SAMPLE_ELEMENTS,), (1,))
            if _has_sample(tensor)
            else None
        )
        if sample is None:
            return anything("values", tensor.dtype)
        sample = sample.to(torch.float64)
        low, high = (float(bound) for bound in sample.aminmax())
        spread, mean = (float(moment) for moment in torch.std_mean(sample))
    if not math.isfinite(mean + spread):
        return Guess(low=low, high=high)
    return Guess(mean, spread, low, high)


def _has_sample(tensor: Tensor) -> bool:
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return room >= _SAMPLE_ELEMENTS
