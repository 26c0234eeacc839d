"""States of CUDA generators, seed and offset, for CPU generators whose state is a table of 5,056 bytes.

CUDA's generators count: a seed and an offset say all of their state, and libraries take the 16 bytes apart
(DTensor adds to the offset so that each rank draws its own part). Here a pair names a state that was seen;
restoring it makes the same draws repeat. A pair that was never seen, made by arithmetic or saved on a GPU,
starts a sequence of its own, the same one in every process; offset 0 is the seed itself.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from typing import Any

import torch

from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

_PAIR = struct.Struct("<Qq")
_SEED_ALONE = 8
"""Bytes of a state without its offset, which CUDA takes, too."""
_KEPT = 4096
"""States that are remembered: 20 MB of them."""
_WORD = (1 << 64) - 1
_STEP = 4
"""CUDA's kernels draw four numbers at once, and offsets are multiples of it."""

Pair = tuple[int, int]
_Generator: Any = torch.Generator  # the real one

_states: OrderedDict[Pair, torch.Tensor] = OrderedDict()
_pairs: dict[bytes, Pair] = {}
_digests: dict[Pair, bytes] = {}
_furthest: dict[int, int] = {}
_seeds: dict[int, int] = {}
"""What a generator says its seed is, by the seed that it was really given."""


def token(generator: Any) -> Pair:
    """Seed and offset for the state that the CPU generator `generator` is in."""
    state = generator.get_state()
    digest = _digest(state)
    pair = _pairs.get(digest)
    if pair is None:
        given = int(generator.initial_seed())
        seed = _seeds.get(given, given)
        if seed not in _furthest:
            fresh = _Generator().manual_seed(seed).get_state()
            _remember((seed, 0), fresh, _digest(fresh))
        pair = _pairs.get(digest)
        if pair is None:
            pair = (seed, _furthest[seed] + _STEP)
            _remember(pair, state, digest)
    return pair


def restore(generator: Any, seed: int, offset: int) -> None:
    """Put the CPU generator `generator` into the state of that name.

    Raises:
        RuntimeError: CUDA has no such offset.
    """
    if offset % _STEP:
        raise RuntimeError("offset must be a multiple of 4")
    state = state_of(seed, offset)
    if state is not None:
        generator.set_state(state)
        return
    really = seed if offset == 0 else mixed(seed, offset)
    generator.manual_seed(really)
    if really != seed:
        _seeds[really] = seed
    state = generator.get_state()
    _remember((seed, offset), state, _digest(state))


def state_of(seed: int, offset: int) -> torch.Tensor | None:
    """The CPU generator's state of that name, if it is remembered."""
    return _states.get((seed, offset))


def generator(seed: int, offset: int) -> Any:
    """A generator of its own in the state of that name."""
    made = _Generator()
    restore(made, seed & _WORD, offset & ~(_STEP - 1) & (_WORD >> 1))
    return made


def packed(seed: int, offset: int) -> torch.Tensor:
    """The 16 bytes of CUDA's state: uint8, on the host."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return torch.frombuffer(bytearray(_PAIR.pack(seed, offset)), dtype=torch.uint8)


def unpacked(state: torch.Tensor) -> Pair:
    """Seed and offset in CUDA's state.

    Raises:
        RuntimeError: it is not of CUDA's size, or TypeError: not of its type, in CUDA's words.
    """
    # Where it lies is not asked: DTensor's own code brings it to the host where no mode can see it.
    if state.dtype is not torch.uint8 or not state.is_contiguous():
        raise TypeError("RNG state must be a torch.ByteTensor")
    size = state.numel()
    if size not in (_SEED_ALONE, _PAIR.size):
        raise RuntimeError("RNG state is wrong size")
    with DisableTorchFunction(), DisableTorchDispatch():
        raw = bytes(state.tolist())
    seed, offset = _PAIR.unpack(raw.ljust(_PAIR.size, b"\0"))
    return seed, offset


def _remember(pair: Pair, state: torch.Tensor, digest: bytes) -> None:
    _states[pair], _pairs[digest], _digests[pair] = state, pair, digest
    _furthest[pair[0]] = max(_furthest.get(pair[0], 0), pair[1])
    while len(_states) > _KEPT:
        oldest, _ = _states.popitem(last=False)
        _pairs.pop(_digests.pop(oldest), None)


def _digest(state: torch.Tensor) -> bytes:
    with DisableTorchFunction(), DisableTorchDispatch():
        return hashlib.blake2b(state.numpy().tobytes(), digest_size=16).digest()


def mixed(seed: int, offset: int) -> int:
    """A number of 64 bits that follows from both."""
    seed, offset = seed & _WORD, offset & (_WORD >> 1)
    digest = hashlib.blake2b(_PAIR.pack(seed, offset), digest_size=8).digest()
    return int.from_bytes(digest, "little")
