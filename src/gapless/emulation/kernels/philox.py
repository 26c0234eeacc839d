"""Represent states of CPU generators (5,056 bytes) as CUDA's: a seed and an offset.

A CUDA generator is a counter: seed and offset are its whole state, and libraries take the 16 bytes apart
(DTensor adds to the offset so that each rank draws its own part). Here a pair identifies a recorded CPU
state: restoring it repeats the same draws. An unrecorded pair, computed by the script or saved on a GPU,
starts its own sequence, the same in every process; offset 0 is the seed itself.
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
"""Bytes of a state without an offset, which CUDA accepts, too."""
_MAX_STATES_KEPT = 4096
"""Number of CPU states remembered: 20 MB of them."""
_WORD = (1 << 64) - 1
"""Mask of 64 bits."""
_STEP = 4
"""CUDA's kernels draw four numbers at once, so offsets are multiples of this."""

Pair = tuple[int, int]
_Generator: Any = torch.Generator  # the real one

_states: OrderedDict[Pair, torch.Tensor] = OrderedDict()
_pairs: dict[bytes, Pair] = {}
_digests: dict[Pair, bytes] = {}
_furthest: dict[int, int] = {}
_seeds: dict[int, int] = {}
"""The seed to report, by the seed that the CPU generator was actually given."""


def token(generator: Any) -> Pair:
    """Return the seed and offset that identify the CPU generator's current state; record it if new."""
    state = generator.get_state()
    digest = _digest(state)
    pair = _pairs.get(digest)
    if pair is None:
        initial = int(generator.initial_seed())
        seed = _seeds.get(initial, initial)
        if seed not in _furthest:
            fresh = _Generator().manual_seed(seed).get_state()
            _remember((seed, 0), fresh, _digest(fresh))
        pair = _pairs.get(digest)
        if pair is None:
            pair = (seed, _furthest[seed] + _STEP)
            _remember(pair, state, digest)
    return pair


def restore(generator: Any, seed: int, offset: int) -> None:
    """Set the CPU generator to the state identified by `seed` and `offset`.

    Raises:
        RuntimeError: `offset` is not a multiple of 4.
    """
    if offset % _STEP:
        raise RuntimeError("offset must be a multiple of 4")
    state = state_of(seed, offset)
    if state is not None:
        generator.set_state(state)
        return
    cpu_seed = seed if offset == 0 else mix(seed, offset)
    generator.manual_seed(cpu_seed)
    if cpu_seed != seed:
        _seeds[cpu_seed] = seed
    state = generator.get_state()
    _remember((seed, offset), state, _digest(state))


def state_of(seed: int, offset: int) -> torch.Tensor | None:
    """The CPU state recorded for `seed` and `offset`, or None."""
    return _states.get((seed, offset))


def generator(seed: int, offset: int) -> Any:
    """Return a new CPU generator in the state identified by `seed` and `offset`."""
    result = _Generator()
    restore(result, seed & _WORD, offset & ~(_STEP - 1) & (_WORD >> 1))
    return result


def pack(seed: int, offset: int) -> torch.Tensor:
    """Pack seed and offset into CUDA's 16-byte state: uint8, on the host."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return torch.frombuffer(bytearray(_PAIR.pack(seed, offset)), dtype=torch.uint8)


def unpack(state: torch.Tensor) -> Pair:
    """Read seed and offset from CUDA's state.

    Raises:
        RuntimeError: wrong size, with CUDA's text.
        TypeError: wrong dtype or not contiguous, with CUDA's text.
    """
    # Its device is not checked: DTensor's own code moves it to the host where no mode can see it.
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
    while len(_states) > _MAX_STATES_KEPT:
        oldest, _ = _states.popitem(last=False)
        _pairs.pop(_digests.pop(oldest), None)


def _digest(state: torch.Tensor) -> bytes:
    with DisableTorchFunction(), DisableTorchDispatch():
        return hashlib.blake2b(state.numpy().tobytes(), digest_size=16).digest()


def mix(seed: int, offset: int) -> int:
    """Hash seed and offset to a 64-bit number."""
    seed, offset = seed & _WORD, offset & (_WORD >> 1)
    digest = hashlib.blake2b(_PAIR.pack(seed, offset), digest_size=8).digest()
    return int.from_bytes(digest, "little")
