"""Memory that nobody uses, and values that are made up for it where somebody wants to look."""

from __future__ import annotations

import math
import mmap
from functools import cache
from typing import Any

import torch

from gapless.emulation.dry.guesses.guess import Guess, anything
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

Tensor = torch.Tensor
_MANY = 8
"""Of a wider range of whole numbers the ends are not drawn."""
MOST = 32 << 20
"""Bytes of a storage up to which values are made up for it."""
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_SEED = 20


def untouched(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    """A tensor that nobody has written to: its pages are there in name only, however many they are."""
    try:
        return torch.empty_strided(size, stride, dtype=dtype)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
    last = sum((n - 1) * by for n, by in zip(size, stride, strict=True))
    return torch.empty(0, dtype=dtype).set_(zeros((last + 1) * dtype.itemsize), 0, size, stride)


def zeros(nbytes: int) -> Any:
    """A storage that may be larger than this machine's memory: reading it takes none.

    It is never memory that was used before, as that of `untouched` may be.
    """
    if not nbytes:
        return torch.UntypedStorage(0)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    with DisableTorchDispatch(), DisableTorchFunction():
        return torch.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype=torch.uint8).untyped_storage()


def address_of_zeros(nbytes: int) -> int:
    """Where at least so many zeros are, as long as the process lives: they are there in name only."""
    return int(_lasting(max(0, nbytes - 1).bit_length()).data_ptr())


@cache
def _lasting(bits: int) -> Any:
    return zeros(1 << bits)


@cache
def made_up(maker: str, dtype: torch.dtype) -> Guess:
    """The record of a storage whose values were made up, or come of such."""
    like = anything(maker, dtype)
    found = Guess(like.mean, like.spread, like.low, like.high)
    found.filled, found.maker = True, maker
    return found


def _shared(total: int, count: int) -> Tensor:
    """So many whole numbers that add up to `total`, as equal as they can be."""
    each, rest = divmod(total, max(1, count))
    return each + (torch.arange(count) < rest).long()


class Filler:
    """Makes values up, the same ones in each run."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(_SEED)

    def fill(self, tensor: Tensor, guess: Guess) -> bool:
        """Write values like `guess` into the whole storage of `tensor`; False where it is too large."""
        storage = tensor.untyped_storage()
        if storage.nbytes() > MOST or tensor.layout is not torch.strided or tensor.is_meta:
            return False
        with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
            whole = torch.empty(0, dtype=tensor.dtype).set_(storage)
            if guess.exact or tensor.is_complex():
                whole.fill_(guess.mean)
            elif not (tensor.is_floating_point() or math.isfinite(guess.low + guess.high)):
                whole.zero_()  # as an index it is within bounds, most likely
            elif tensor.dtype is torch.bool:
                drawn = torch.rand(whole.numel(), generator=self._generator) < guess.mean
                whole.copy_(drawn if whole.numel() > 1 else torch.tensor([guess.mean > 0.5]))
            elif guess.total is not None:
                whole.copy_(_shared(guess.total, whole.numel()))
            else:
                whole.copy_(self._drawn(whole, guess))
        return True

    def _whole_numbers(self, values: Tensor, low: float, high: float) -> Tensor:
        """`values`, drawn anew where they lie outside. Of many numbers the first and the last are not drawn:
        they often stand for something else (padding, a background, the mean of a spectrum)."""
        if high - low > _MANY:
            low, high = low + 1, high - 1
        anew = torch.rand(values.numel(), generator=self._generator).mul_(high - low).add_(low).round_()
        return torch.where((values < low) | (values > high), anew, values)

    def _drawn(self, whole: Tensor, guess: Guess) -> Tensor:
        values = torch.empty(whole.numel(), dtype=torch.float32)
        values.normal_(generator=self._generator).mul_(guess.spread).add_(guess.mean)
        low, high = guess.low, guess.high
        if not whole.is_floating_point():
            info = torch.iinfo(whole.dtype)
            low, high = max(low, float(max(info.min, -(1 << 24)))), min(high, float(min(info.max, 1 << 24)))
            values.round_()
            if math.isfinite(guess.low + guess.high):
                return self._whole_numbers(values, low, high)
        if low > -math.inf or high < math.inf:
            values.clamp_(low, high)
        return values
