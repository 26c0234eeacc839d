"""What a run that ended out of memory needs: the request, the memory there was, and what helps."""

from __future__ import annotations

import msgspec

from gapless.model.source import SourceLine


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A request that the recorded run did not get.

    `event` is its row, `reserved` what the process had reserved then, `free` what the driver said was left
    on the device (-1: not told); bytes.
    """

    event: int
    reserved: int = 0
    free: int = -1


class OutOfMemory(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The request that failed, and the memory around it; bytes.

    `free` is what the device had left (-1: not told). Of `reserved`, `allocated` was in use and `unusable`
    was not and could not be given back: free pieces of at most `largest` (of those that could serve the
    request). `has` is what the process may have
    (`least`: at least that, no more is known). `needs` is the least with which the replay was seen to come
    through under the run's own settings, giving its cache back as it must; `unlimited` what it reserves
    where nothing limits it.

    `recorded` says that the recorded run itself failed, `ended` that it asked for nothing more after that.
    `open` says that the recording shows a part of the run, so that all of it may need more. `afresh` are
    settings that help if what was in use when recording began is laid out anew, and do not as it lay.
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
    """Another device of the same file: what it reserved at most, and how many of its requests failed."""

    device: int
    peak_reserved: int = 0
    failures: int = 0
