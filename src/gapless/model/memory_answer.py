"""What a run that ran out of memory needs: the request, the memory at that moment, and what helps."""

from __future__ import annotations

import msgspec

from gapless.model.source import SourceLine


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A request that failed in the recorded run.

    `event` is its row, `reserved` what the process had reserved, `free` what the driver said was left on the
    device (-1: it did not); bytes.
    """

    event: int
    reserved: int = 0
    free: int = -1


class OutOfMemory(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The request that failed, and the memory around it; bytes.

    - `free`: what the device had left (-1: unknown).
    - `reserved`: of this `allocated` was in use, and `unusable` was free but could not be returned: pieces of
      at most `largest` (of those that could serve the request).
    - `has`: what the process may have; `least`: at least that much, no more is known.
    - `needs`: the least with which the replay succeeds under the run's own settings, returning its cache as
      necessary; `unlimited`: what it reserves without a limit.
    - `recorded`: the recorded run itself failed; `ended`: it requested nothing after that.
    - `open`: only a part of the run was recorded, so the whole may need more.
    - `afresh`: settings that help only if the memory in use when recording began is laid out anew.
    """

    event: int
    asked: int
    line: SourceLine | None = None
    free: int = -1
    allocated: int = 0
    reserved: int = 0
    unusable: int = 0
    largest: int = 0
    has: int = -1
    least: bool = False
    needs: int = 0
    unlimited: int = 0
    recorded: bool = False
    ended: bool = False
    open: bool = False
    afresh: str = ""

    @property
    def short(self) -> int:
        """Bytes that are missing."""
        return max(self.needs - self.has, 0)


class OtherDevice(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Another device of the same file: its peak of reserved bytes, and how many of its requests failed."""

    device: int
    peak_reserved: int = 0
    failures: int = 0
