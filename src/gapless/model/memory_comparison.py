"""`MemoryComparison`: how the GPU's memory changed from one run to another."""

from __future__ import annotations

import msgspec

from gapless.model.memory_report import Owner


class MemorySide(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One of the two runs: bytes at its peaks, requests that found the device full, calls to the driver."""

    name: str
    device: int = 0
    gpu: str = ""
    steps: int = 0
    allocated: int = 0
    reserved: int = 0
    retries: int = 0
    failures: int = 0
    calls: int = 0


class OwnerChange(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one owner holds at the peak before and after: bytes and tensors; 0 on a side without it.

    `owner` is the current one, or the earlier one if it is gone: the largest, if lines of one function are
    merged.
    """

    owner: Owner
    before: int = 0
    after: int = 0
    tensors_before: int = 0
    tensors_after: int = 0

    @property
    def change(self) -> int:
        """The increase in bytes."""
        return self.after - self.before


class MemoryComparison(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Two runs' memory at their peaks, the largest changes first.

    `kinds` are kinds of tensors with bytes before and after. `owners` are those that changed.
    """

    sentence: str
    before: MemorySide
    after: MemorySide
    kinds: tuple[tuple[str, int, int], ...] = ()
    owners: tuple[OwnerChange, ...] = ()
