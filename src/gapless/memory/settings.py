"""Settings of the allocator: what ``PYTORCH_ALLOC_CONF`` (``PYTORCH_CUDA_ALLOC_CONF``) may say.

What torch rejects is rejected here, in the same order and for the same reasons; where torch crashes (no value
behind a key, a bracket that is not closed), a sentence says why. Keys are those of torch 2.13 and two of its
successor's. An unknown key is an error, as it is on a GPU; torch without CUDA takes it.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import NamedTuple

from gapless.errors import UsageError
from gapless.memory.sizes import INTERVALS, LARGE_SEGMENT, MIB, MIN_LARGE

NO_LIMIT = 1 << 62
"""``max_split_size`` where every block may be split."""
_SIZE_T = (1 << 64) - 1
_NUMBER = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?|[+-]?nan", re.IGNORECASE)


class InvalidSettings(UsageError):
    """Settings that torch would refuse."""


class Settings(NamedTuple):
    """What of the settings changes which memory is reserved. Sizes in bytes.

    `divisions` are those of ``roundup_power2_divisions``: 16 numbers, or none. `fraction` is the share of
    the device that the process may reserve; with `rejects` a request beyond it fails at once, and no memory
    is given back for it. `ignored` names keys that are valid and change nothing here, `unsimulated` those
    whose effect is not simulated.
    """

    max_split_size: int = NO_LIMIT
    max_non_split_rounding: int = LARGE_SEGMENT
    large_segment_size: int = LARGE_SEGMENT
    divisions: tuple[int, ...] = ()
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    fraction: float = 1.0
    rejects: bool = False
    backend: str = "native"
    ignored: tuple[str, ...] = ()
    unsimulated: tuple[str, ...] = ()

    @property
    def collects(self) -> bool:
        """Whether garbage is collected: torch does so only where the process is limited to a fraction."""
        return self.garbage_collection_threshold > 0 and self.fraction < 1


def parse(text: str) -> Settings:
    """The settings that `text` (``expandable_segments:True,max_split_size_mb:128``) stands for.

    Raises:
        InvalidSettings: torch would refuse it.
    """
    tokens = _tokens(text)
    found: dict[str, object] = {}
    ignored: dict[str, None] = {}
    unsimulated: dict[str, None] = {}
    _large_segment(tokens, found)
    at = 0
    while at < len(tokens):
        key = tokens[at]
        reader = _READERS.get(key)
        if reader is None:
            known = ", ".join(sorted(one for one in _READERS if "hip" not in one))
            raise InvalidSettings(f"PyTorch has no allocator setting {key!r}; known settings: {known}")
        at = reader(tokens, at, found)
        if key in _WITHOUT_EFFECT:
            ignored[key] = None
        if key in _NOT_SIMULATED:
            unsimulated[key] = None
        # torch looks at what follows a value without minding what it is, and goes on behind it.
        at += 2
    names = {"ignored": tuple(ignored), "unsimulated": tuple(unsimulated)}
    return Settings(**found, **names)  # type: ignore[arg-type]  # by name


def _tokens(text: str) -> list[str]:
    """Keys, values, colons, commas and brackets; white space is dropped, within words too."""
    squeezed = "".join(text.split())
    return [token for token in re.split(r"([,:\[\]])", squeezed) if token]


def _value(tokens: list[str], at: int) -> str:
    """The token behind the colon of the key at `at`."""
    if at + 2 >= len(tokens):
        raise InvalidSettings(f"{tokens[at]} has no value: write {tokens[at]}:VALUE")
    return tokens[at + 2]


def _whole(text: str) -> int:
    """As C++'s ``stoull`` reads: digits up to the first other character; negative numbers wrap around."""
    found = _NUMBER.match(text)
    if found is None:
        raise InvalidSettings(f"{text!r} is not a number")
    value = int(found.group())
    if abs(value) > _SIZE_T:
        raise InvalidSettings(f"{text} is too large a number")
    return value & _SIZE_T


def _real(text: str) -> float:
    found = _FLOAT.match(text)
    if found is None:
        raise InvalidSettings(f"{text!r} is not a number")
    value = float(found.group())
    beyond = math.isinf(value) and "inf" not in text.lower()
    if beyond or 0 < abs(value) < sys.float_info.min:
        raise InvalidSettings(f"{text} is too large or too small a number")
    return value


def _truth(tokens: list[str], at: int) -> bool:
    text = _value(tokens, at)
    if text not in ("True", "False"):
        raise InvalidSettings(f"{tokens[at]} must be written True or False, not {text!r}")
    return text == "True"


Reader = Callable[[list[str], int, dict[str, object]], int]
"""Reads the value of the key at a position into the settings; returns the position of its last token."""


def _large_segment(tokens: list[str], found: dict[str, object]) -> None:
    """Read before all others: their smallest values depend on it."""
    at = 0
    while at < len(tokens):
        if tokens[at] == "large_segment_size_mb":
            value = _whole(_value(tokens, at))
            if value <= MIN_LARGE // MIB:
                raise InvalidSettings(
                    f"large_segment_size_mb must be over {MIN_LARGE // MIB}, but is {value}"
                )
            found["large_segment_size"] = found["max_non_split_rounding"] = _bytes(value)
            at += 2
        at += 1


def _bytes(mib: int) -> int:
    return min(mib, _SIZE_T // MIB) * MIB


def _at_least_a_segment(name: str) -> Reader:
    def read(tokens: list[str], at: int, found: dict[str, object]) -> int:
        value = _whole(_value(tokens, at))
        least = found.get("large_segment_size", LARGE_SEGMENT)
        assert isinstance(least, int)
        if value < least // MIB:
            raise InvalidSettings(f"{tokens[at]} must be at least {least // MIB}, but is {value}")
        found[name] = min(_bytes(value), NO_LIMIT)
        return at + 2

    return read


def _divisions(tokens: list[str], at: int, found: dict[str, object]) -> int:
    first = _value(tokens, at)
    if first != "[":
        value = _whole(first)
        if value & (value - 1) or not value:
            raise InvalidSettings(f"roundup_power2_divisions must be a power of two, but is {value}")
        found["divisions"] = (value,) * INTERVALS
        return at + 2
    chosen = [0] * INTERVALS
    last, fresh, at = 0, True, at + 3
    while at < len(tokens) and tokens[at] != "]":
        value = _whole(_value(tokens, at))
        if value & (value - 1):
            raise InvalidSettings(f"roundup_power2_divisions must be powers of two or 0, but one is {value}")
        if tokens[at] == ">":
            chosen[last + 1 :] = [value] * (INTERVALS - last - 1)
        else:
            last = _interval(tokens[at])
            if fresh:
                chosen[:last] = [value] * last
            chosen[last], fresh = value, False
        at += 3
        if at < len(tokens) and tokens[at] != "]":
            at += 1
    if at >= len(tokens):
        raise InvalidSettings("roundup_power2_divisions has a bracket that is not closed")
    found["divisions"] = tuple(chosen) if any(value > 1 for value in chosen) else ()
    return at


def _interval(text: str) -> int:
    boundary = _whole(text)
    if boundary & (boundary - 1) or not boundary:
        raise InvalidSettings(f"roundup_power2_divisions needs boundaries that are powers of two, not {text}")
    return min(boundary.bit_length() - 1, INTERVALS - 1)


def _threshold(tokens: list[str], at: int, found: dict[str, object]) -> int:
    value = _real(_value(tokens, at))
    if not 0 < value < 1:
        raise InvalidSettings(f"garbage_collection_threshold must be between 0 and 1, but is {value:g}")
    found["garbage_collection_threshold"] = value
    return at + 2


def _fraction(tokens: list[str], at: int, found: dict[str, object]) -> int:
    value = _real(_value(tokens, at))
    if not 0 <= value <= 1:
        raise InvalidSettings(f"per_process_memory_fraction must be between 0 and 1, but is {value:g}")
    found["fraction"] = value
    return at + 2


def _backend(tokens: list[str], at: int, found: dict[str, object]) -> int:
    value = _value(tokens, at)
    if value not in ("native", "cudaMallocAsync"):
        raise InvalidSettings(f"backend must be native or cudaMallocAsync, not {value!r}")
    found["backend"] = value
    return at + 2


def _expandable(tokens: list[str], at: int, found: dict[str, object]) -> int:
    found["expandable_segments"] = _truth(tokens, at)
    return at + 2


def _rejects(tokens: list[str], at: int, found: dict[str, object]) -> int:
    found["rejects"] = _truth(tokens, at)
    return at + 2


def _flag(tokens: list[str], at: int, found: dict[str, object]) -> int:
    _truth(tokens, at)
    return at + 2


def _registers(tokens: list[str], at: int, found: dict[str, object]) -> int:
    value = _whole(_value(tokens, at))
    if not value or value & (value - 1) or value > 128:
        raise InvalidSettings(f"pinned_num_register_threads must be a power of two up to 128, but is {value}")
    return at + 2


def _positive(tokens: list[str], at: int, found: dict[str, object]) -> int:
    if not _whole(_value(tokens, at)):
        raise InvalidSettings(f"{tokens[at]} must be over 0")
    return at + 2


def _amount(tokens: list[str], at: int, found: dict[str, object]) -> int:
    _whole(_value(tokens, at))
    return at + 2


def _reserve(tokens: list[str], at: int, found: dict[str, object]) -> int:
    """How much address space a segment gets: torch warns about what it cannot read, and goes on."""
    if _value(tokens, at) != "[":
        return at + 2
    while at < len(tokens) and tokens[at] != "]":
        at += 1
    if at >= len(tokens):
        raise InvalidSettings("expandable_segments_reserve_by_class has a bracket that is not closed")
    return at


_NOT_SIMULATED: dict[str, Reader] = {
    # Streams that are tagged get less address space; reuse while a graph is captured.
    "expandable_segments_reserve": _reserve,
    "expandable_segments_reserve_by_class": _reserve,
    "graph_capture_record_stream_reuse": _flag,
}
_WITHOUT_EFFECT: dict[str, Reader] = {
    "pinned_free_catch_all": _flag,
    "pinned_max_cached_size_mb": _amount,
    "pinned_max_round_threshold_mb": _amount,
    "pinned_num_register_threads": _registers,
    "pinned_reserve_segment_size_mb": _positive,
    "pinned_use_background_threads": _flag,
    "pinned_use_cuda_host_register": _flag,
    "pinned_use_hip_host_register": _flag,
    "release_lock_on_cudamalloc": _flag,
    "release_lock_on_hipmalloc": _flag,
}
_READERS: dict[str, Reader] = {
    "backend": _backend,
    "expandable_segments": _expandable,
    "garbage_collection_threshold": _threshold,
    "large_segment_size_mb": lambda tokens, at, found: at + 2,
    "max_non_split_rounding_mb": _at_least_a_segment("max_non_split_rounding"),
    "max_split_size_mb": _at_least_a_segment("max_split_size"),
    "per_process_memory_fraction": _fraction,
    "roundup_power2_divisions": _divisions,
    "throw_on_cudamalloc_oom": _rejects,
    **_NOT_SIMULATED,
    **_WITHOUT_EFFECT,
}
