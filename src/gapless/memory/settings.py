"""Parse allocator settings: the values of ``PYTORCH_ALLOC_CONF`` (``PYTORCH_CUDA_ALLOC_CONF``).

Rejects what torch rejects, in the same order and for the same reasons; where torch crashes (a key without a
value, an unclosed bracket), the error says why. Keys are those of torch 2.13 and two of its successor's.
Unknown keys are an error, as on a GPU; torch without CUDA accepts them.
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
"""``max_split_size`` if every block may be split."""
_SIZE_T = (1 << 64) - 1
"""The largest ``size_t``, on 64-bit machines."""
_NUMBER = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?|[+-]?nan", re.IGNORECASE)


class InvalidSettings(UsageError):
    """Settings that torch would reject."""


class Settings(NamedTuple):
    """The settings that affect how much memory is reserved; sizes in bytes.

    `divisions` are those of ``roundup_power2_divisions``: 16 numbers, or none. `fraction` is the share of the
    device that the process may reserve; with `rejects` a request beyond it fails at once instead of releasing
    memory first. `ignored` names valid keys without effect on reserved memory, `unsimulated` those whose
    effect is not simulated.
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
        """Whether garbage is collected: torch does so only if the process is limited to a fraction."""
        return self.garbage_collection_threshold > 0 and self.fraction < 1


def parse(text: str) -> Settings:
    """Parse `text` (``expandable_segments:True,max_split_size_mb:128``).

    Raises:
        InvalidSettings: torch would reject it.
    """
    tokens = _tokens(text)
    values: dict[str, object] = {}
    ignored: dict[str, None] = {}
    unsimulated: dict[str, None] = {}
    _read_large_segment(tokens, values)
    at = 0
    while at < len(tokens):
        key = tokens[at]
        reader = _READERS.get(key)
        if reader is None:
            known_keys = ", ".join(sorted(key for key in _READERS if "hip" not in key))
            raise InvalidSettings(f"PyTorch has no allocator setting {key!r}; known settings: {known_keys}")
        at = reader(tokens, at, values)
        if key in _WITHOUT_EFFECT:
            ignored[key] = None
        if key in _NOT_SIMULATED:
            unsimulated[key] = None
        # torch skips the token behind a value without checking what it is
        at += 2
    names = {"ignored": tuple(ignored), "unsimulated": tuple(unsimulated)}
    return Settings(**values, **names)  # type: ignore[arg-type]  # by name


def _tokens(text: str) -> list[str]:
    """Split into keys, values, colons, commas and brackets; white space is dropped, even within words."""
    squeezed = "".join(text.split())
    return [token for token in re.split(r"([,:\[\]])", squeezed) if token]


def _value(tokens: list[str], at: int) -> str:
    """Return the token behind the colon of the key at `at`."""
    if at + 2 >= len(tokens):
        raise InvalidSettings(f"{tokens[at]} has no value: write {tokens[at]}:VALUE")
    return tokens[at + 2]


def _parse_integer(text: str) -> int:
    """Parse like C++'s ``stoull``: digits up to another character; negative numbers wrap around."""
    match = _NUMBER.match(text)
    if match is None:
        raise InvalidSettings(f"{text!r} is not a number")
    value = int(match.group())
    if abs(value) > _SIZE_T:
        raise InvalidSettings(f"{text} is too large a number")
    return value & _SIZE_T


def _parse_float(text: str) -> float:
    match = _FLOAT.match(text)
    if match is None:
        raise InvalidSettings(f"{text!r} is not a number")
    value = float(match.group())
    beyond = math.isinf(value) and "inf" not in text.lower()
    if beyond or 0 < abs(value) < sys.float_info.min:
        raise InvalidSettings(f"{text} is too large or too small a number")
    return value


def _parse_bool(tokens: list[str], at: int) -> bool:
    text = _value(tokens, at)
    if text not in ("True", "False"):
        raise InvalidSettings(f"{tokens[at]} must be written True or False, not {text!r}")
    return text == "True"


SettingReader = Callable[[list[str], int, dict[str, object]], int]
"""Reads the value of the key at an index into the settings; returns the index of its last token."""


def _read_large_segment(tokens: list[str], values: dict[str, object]) -> None:
    """Read ``large_segment_size_mb`` first: the minima of other keys depend on it."""
    at = 0
    while at < len(tokens):
        if tokens[at] == "large_segment_size_mb":
            value = _parse_integer(_value(tokens, at))
            if value <= MIN_LARGE // MIB:
                raise InvalidSettings(
                    f"large_segment_size_mb must be over {MIN_LARGE // MIB}, but is {value}"
                )
            values["large_segment_size"] = values["max_non_split_rounding"] = _mib_to_bytes(value)
            at += 2
        at += 1


def _mib_to_bytes(mib: int) -> int:
    return min(mib, _SIZE_T // MIB) * MIB


def _segment_size_reader(name: str) -> SettingReader:
    def read(tokens: list[str], at: int, values: dict[str, object]) -> int:
        value = _parse_integer(_value(tokens, at))
        least = values.get("large_segment_size", LARGE_SEGMENT)
        assert isinstance(least, int)
        if value < least // MIB:
            raise InvalidSettings(f"{tokens[at]} must be at least {least // MIB}, but is {value}")
        values[name] = min(_mib_to_bytes(value), NO_LIMIT)
        return at + 2

    return read


def _read_divisions(tokens: list[str], at: int, values: dict[str, object]) -> int:
    first = _value(tokens, at)
    if first != "[":
        value = _parse_integer(first)
        if value & (value - 1) or not value:
            raise InvalidSettings(f"roundup_power2_divisions must be a power of two, but is {value}")
        values["divisions"] = (value,) * INTERVALS
        return at + 2
    chosen = [0] * INTERVALS
    last, fresh, at = 0, True, at + 3
    while at < len(tokens) and tokens[at] != "]":
        value = _parse_integer(_value(tokens, at))
        if value & (value - 1):
            raise InvalidSettings(f"roundup_power2_divisions must be powers of two or 0, but one is {value}")
        if tokens[at] == ">":
            chosen[last + 1 :] = [value] * (INTERVALS - last - 1)
        else:
            last = _parse_interval(tokens[at])
            if fresh:
                chosen[:last] = [value] * last
            chosen[last], fresh = value, False
        at += 3
        if at < len(tokens) and tokens[at] != "]":
            at += 1
    if at >= len(tokens):
        raise InvalidSettings("roundup_power2_divisions has a bracket that is not closed")
    values["divisions"] = tuple(chosen) if any(value > 1 for value in chosen) else ()
    return at


def _parse_interval(text: str) -> int:
    boundary = _parse_integer(text)
    if boundary & (boundary - 1) or not boundary:
        raise InvalidSettings(f"roundup_power2_divisions needs boundaries that are powers of two, not {text}")
    return min(boundary.bit_length() - 1, INTERVALS - 1)


def _read_threshold(tokens: list[str], at: int, values: dict[str, object]) -> int:
    value = _parse_float(_value(tokens, at))
    if not 0 < value < 1:
        raise InvalidSettings(f"garbage_collection_threshold must be between 0 and 1, but is {value:g}")
    values["garbage_collection_threshold"] = value
    return at + 2


def _read_fraction(tokens: list[str], at: int, values: dict[str, object]) -> int:
    value = _parse_float(_value(tokens, at))
    if not 0 <= value <= 1:
        raise InvalidSettings(f"per_process_memory_fraction must be between 0 and 1, but is {value:g}")
    values["fraction"] = value
    return at + 2


def _read_backend(tokens: list[str], at: int, values: dict[str, object]) -> int:
    value = _value(tokens, at)
    if value not in ("native", "cudaMallocAsync"):
        raise InvalidSettings(f"backend must be native or cudaMallocAsync, not {value!r}")
    values["backend"] = value
    return at + 2


def _read_expandable(tokens: list[str], at: int, values: dict[str, object]) -> int:
    values["expandable_segments"] = _parse_bool(tokens, at)
    return at + 2


def _read_rejects(tokens: list[str], at: int, values: dict[str, object]) -> int:
    values["rejects"] = _parse_bool(tokens, at)
    return at + 2


def _check_flag(tokens: list[str], at: int, values: dict[str, object]) -> int:
    _parse_bool(tokens, at)
    return at + 2


def _check_thread_count(tokens: list[str], at: int, values: dict[str, object]) -> int:
    value = _parse_integer(_value(tokens, at))
    if not value or value & (value - 1) or value > 128:
        raise InvalidSettings(f"pinned_num_register_threads must be a power of two up to 128, but is {value}")
    return at + 2


def _check_positive(tokens: list[str], at: int, values: dict[str, object]) -> int:
    if not _parse_integer(_value(tokens, at)):
        raise InvalidSettings(f"{tokens[at]} must be over 0")
    return at + 2


def _check_integer(tokens: list[str], at: int, values: dict[str, object]) -> int:
    _parse_integer(_value(tokens, at))
    return at + 2


def _skip_reserve(tokens: list[str], at: int, values: dict[str, object]) -> int:
    """Skip the address space per segment: torch only warns about values it cannot read."""
    if _value(tokens, at) != "[":
        return at + 2
    while at < len(tokens) and tokens[at] != "]":
        at += 1
    if at >= len(tokens):
        raise InvalidSettings("expandable_segments_reserve_by_class has a bracket that is not closed")
    return at


_NOT_SIMULATED: dict[str, SettingReader] = {
    # address space of tagged streams; reuse while a graph is captured
    "expandable_segments_reserve": _skip_reserve,
    "expandable_segments_reserve_by_class": _skip_reserve,
    "graph_capture_record_stream_reuse": _check_flag,
}
_WITHOUT_EFFECT: dict[str, SettingReader] = {
    "pinned_free_catch_all": _check_flag,
    "pinned_max_cached_size_mb": _check_integer,
    "pinned_max_round_threshold_mb": _check_integer,
    "pinned_num_register_threads": _check_thread_count,
    "pinned_reserve_segment_size_mb": _check_positive,
    "pinned_use_background_threads": _check_flag,
    "pinned_use_cuda_host_register": _check_flag,
    "pinned_use_hip_host_register": _check_flag,
    "release_lock_on_cudamalloc": _check_flag,
    "release_lock_on_hipmalloc": _check_flag,
}
_READERS: dict[str, SettingReader] = {
    "backend": _read_backend,
    "expandable_segments": _read_expandable,
    "garbage_collection_threshold": _read_threshold,
    "large_segment_size_mb": lambda tokens, at, values: at + 2,
    "max_non_split_rounding_mb": _segment_size_reader("max_non_split_rounding"),
    "max_split_size_mb": _segment_size_reader("max_split_size"),
    "per_process_memory_fraction": _read_fraction,
    "roundup_power2_divisions": _read_divisions,
    "throw_on_cudamalloc_oom": _read_rejects,
    **_NOT_SIMULATED,
    **_WITHOUT_EFFECT,
}
