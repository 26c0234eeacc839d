"""Memory that takes no room until it is used, and values made up for it when somebody reads it."""

from __future__ import annotations

import math
import mmap
from functools import cache
from typing import Any

import torch

from gapless.emulation.dry.guesses.guess import Guess, anything
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

Tensor = torch.Tensor
_MIN_RANGE_WITHOUT_ENDS = 8
"""In wider integer ranges the ends are not drawn: they often have a special meaning."""
MAX_FILLED_BYTES = 32 << 20
"""Bytes of a storage up to which values are made up: some 0.1 s."""
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_SEED = 20
"""Any fixed number: values are the same in each run."""


def untouched_tensor(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor, whose pages take no memory until they are written."""
    try:
        return torch.empty_strided(size, stride, dtype=dtype)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
    last = sum((n - 1) * by for n, by in zip(size, stride, strict=True))
    return torch.empty(0, dtype=dtype).set_(zero_storage((last + 1) * dtype.itemsize), 0, size, stride)


def zero_storage(nbytes: int) -> Any:
    """Return a storage of zeros that may exceed this machine's memory: reading it takes none.

    Its memory is fresh, while that of `untouched_tensor` may have been used before.
    """
    if not nbytes:
        return torch.UntypedStorage(0)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    with DisableTorchDispatch(), DisableTorchFunction():
        return torch.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype=torch.uint8).untyped_storage()


def address_of_zeros(nbytes: int) -> int:
    """Return the address of at least `nbytes` zeros that last as long as the process and take no memory."""
    return int(_permanent_zeros(max(0, nbytes - 1).bit_length()).data_ptr())


@cache
def _permanent_zeros(bits: int) -> Any:
    return zero_storage(1 << bits)


@cache
def made_up_guess(maker: str, dtype: torch.dtype) -> Guess:
    """Return the guess for a storage that holds made-up values, or values computed from made-up ones."""
    like = anything(maker, dtype)
    guess = Guess(like.mean, like.spread, like.low, like.high)
    guess.filled, guess.maker = True, maker
    return guess


def _split_total(total: int, count: int) -> Tensor:
    """Return `count` integers that add up to `total` and differ by at most 1."""
    each, rest = divmod(total, max(1, count))
    return each + (torch.arange(count) < rest).long()


class Filler:
    """Makes up values from guesses, the same in each run."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(_SEED)

    def fill(self, tensor: Tensor, guess: Guess) -> bool:
        """Write values drawn from `guess` into the whole storage of `tensor`; return False if too large."""
        storage = tensor.untyped_storage()
        if storage.nbytes() > MAX_FILLED_BYTES or tensor.layout is not torch.strided or tensor.is_meta:
            return False
        with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
            whole = torch.empty(0, dtype=tensor.dtype).set_(storage)
            if guess.exact or tensor.is_complex():
                whole.fill_(guess.mean)
            elif not (tensor.is_floating_point() or math.isfinite(guess.low + guess.high)):
                whole.zero_()  # most likely a valid index
            elif tensor.dtype is torch.bool:
                drawn = torch.rand(whole.numel(), generator=self._generator) < guess.mean
                whole.copy_(drawn if whole.numel() > 1 else torch.tensor([guess.mean > 0.5]))
            elif guess.total is not None:
                whole.copy_(_split_total(guess.total, whole.numel()))
            else:
                whole.copy_(self._draw(whole, guess))
        return True

    def _redraw_outside(self, values: Tensor, low: float, high: float) -> Tensor:
        """Return `values`, redrawn where they lie outside of `low` to `high`. In wide ranges the ends are not
        drawn: they often mean something else (padding, a background, the mean of a spectrum)."""
        if high - low > _MIN_RANGE_WITHOUT_ENDS:
            low, high = low + 1, high - 1
        anew = torch.rand(values.numel(), generator=self._generator).mul_(high - low).add_(low).round_()
        return torch.where((values < low) | (values > high), anew, values)

    def _draw(self, whole: Tensor, guess: Guess) -> Tensor:
        values = torch.empty(whole.numel(), dtype=torch.float32)
        values.normal_(generator=self._generator).mul_(guess.spread).add_(guess.mean)
        low, high = guess.low, guess.high
        if not whole.is_floating_point():
            info = torch.iinfo(whole.dtype)
            low, high = max(low, float(max(info.min, -(1 << 24)))), min(high, float(min(info.max, 1 << 24)))
            values.round_()
            if math.isfinite(guess.low + guess.high):
                return self._redraw_outside(values, low, high)
        if low > -math.inf or high < math.inf:
            values.clamp_(low, high)
        return values
