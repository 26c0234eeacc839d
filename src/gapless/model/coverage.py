"""`Coverage`: how much of what happened a profile holds."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.wording import count, duration, percent

WHOLE = 0.95
"""From this share of the records on a profile is explained; below it no verdict is given."""
HIDDEN = 0.05
"""Up to this share of the steps missing work may have filled without a word."""
CORRUPTED = 0.02
"""Up to this part of the file may be unreadable."""

Kind = Literal["graph", "launch", "record", "call", "operator", "stretch", "scattered", "around"]
"""What is missing.

- ``graph``: graph launches without any kernel; ``launch``: other launches without work on the GPU;
- ``record``: work on the GPU to which the file's own arrows lead;
- ``call``: work on the GPU whose launch is not there;
- ``operator``: operators and annotations, which the profiler numbers;
- ``stretch``: launches with their work on the GPU, about so many, of which nothing is there in some stretch;
- ``scattered``: the same here and there, at least so many;
- ``around``: operators around launches, at the beginning or the end of the file.
"""
_IDLENESS: tuple[Kind, ...] = ("graph", "launch", "record", "stretch", "scattered", "around")
"""Kinds without which the GPU's idleness is not known."""


class Missing(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Of one kind `seen` are there of `of` that there should be."""

    kind: Kind
    seen: int
    of: int

    @property
    def share(self) -> float:
        """The part that is there, 0 to 1."""
        return self.seen / self.of if self.of else 1.0

    @property
    def told(self) -> str:
        """What is missing, as the end of a sentence."""
        gone = f"{self.of - self.seen:,} of {self.of:,}"
        return {
            "graph": f"{gone} graph launches have no kernels in this file",
            "launch": f"{gone} launches have no GPU work in this file",
            "record": f"{gone} kernels and copies are not in this file",
            "call": f"{gone} kernels and copies have no launch in this file",
            "operator": f"{gone} CPU events are not in this file",
            "stretch": f"a stretch with about {gone} launches is not in this file",
            "scattered": f"at least {self.of - self.seen:,} launches are not in this file",
            "around": f"{gone} launches have no CPU operators around them in this file",
        }[self.kind]


class Coverage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a profile holds of what happened: everything that explains a profile asks this first.

    `launches` put work on the GPU, `records` is the work that is there. `missing` has the kinds of which not
    all is there, the gravest first. The file was `cut` off, `broken` events of it could not be read,
    `corrupted` bytes of `size` were given up; it holds `profiles` one after the other, of `processes` that
    launch. `contradictory` records cannot be where their times say. In an `excerpt` so many CPU events of a
    longer recording come before the first; a `bare` profile has no operators at all, an `endless` one not the
    mark with which the profiler ends a recording. Its last `unrecorded` nanoseconds have no events, and its
    first `silent` ones. `hidden` nanoseconds in the steps, of `steps`, are idle as recorded, and missing work
    may have run in them; `unexplained` ones are idle while CPU events begin that are missing. In an
    `unmarked` one marks of steps are missing.

    >>> Coverage(missing=(Missing(kind="graph", seen=2, of=10),)).complete
    False
    """

    launches: int = 0
    records: int = 0
    missing: tuple[Missing, ...] = ()
    cut: bool = False
    broken: int = 0
    corrupted: int = 0
    size: int = 0
    profiles: int = 1
    processes: int = 1
    contradictory: int = 0
    excerpt: int = 0
    bare: bool = False
    endless: bool = False
    silent: int = 0
    unrecorded: int = 0
    hidden: int = 0
    unexplained: int = 0
    steps: int = 0
    unmarked: bool = False

    @property
    def share(self) -> float:
        """Of the kind of which least is there, the part that is, 0 to 1."""
        return min((one.share for one in self.missing), default=1.0)

    @property
    def complete(self) -> bool:
        """Whether enough is there for a verdict."""
        missing = self.share < WHOLE or self._hides or self._unexplained or self.unmarked
        return not (self._anything_goes or missing)

    @property
    def idle_known(self) -> bool:
        """Whether the GPU's idleness is known, even if its reasons are not."""
        gone = any(one.share < WHOLE and one.kind in _IDLENESS for one in self.missing)
        return not (self._anything_goes or gone or self._hides)

    @property
    def reason(self) -> str:
        """Why no verdict can be given, without a full stop; "" where one can."""
        found = [
            (self.profiles > 1, f"the file contains {self.profiles} profiles, one after the other"),
            (
                self.processes > 1,
                f"the file contains the launches of {self.processes} processes but does not say which "
                "work belongs to which",
            ),
            *((one.share < WHOLE, one.told) for one in self.missing),
            (self.cut, "the file is cut off"),
            (self._unread, f"{percent(self.corrupted / (self.size or 1))} of the file cannot be read"),
            (
                self.unrecorded > 0,
                f"nothing was recorded in the last {duration(self.unrecorded)} of the recording",
            ),
            (self.contradictory > 0, f"the times of {count(self.contradictory, 'event')} are impossible"),
            (
                self.unmarked and self.share >= WHOLE,
                "CPU events are missing, including step marks",
            ),
            (
                self._hides and self.share >= WHOLE,
                f"missing GPU work may fill {percent(self.hidden / (self.steps or 1))} of the time",
            ),
            (
                self._unexplained and self.share >= WHOLE and not self._hides,
                f"missing CPU events may explain {percent(self.unexplained / (self.steps or 1))} of the time",
            ),
        ]
        return ", and ".join([told for applies, told in found if applies][:2])

    @property
    def remedy(self) -> str:
        """How to record so that nothing is missing, as an action."""
        if self.profiles > 1 or self.processes > 1:
            return "write each process and each profile to its own file"
        if self.cut:
            return "record again, and keep the process alive until the trace is written"
        if any(one.share < WHOLE and one.kind in ("graph", "launch", "record") for one in self.missing):
            return (
                "record fewer steps at once (`schedule=`), because full buffers drop work, and let the GPU "
                "finish before the profiler stops"
            )
        return "record again, or copy the file again: it was changed after it was written"

    @property
    def _hides(self) -> bool:
        return self.hidden >= HIDDEN * self.steps > 0

    @property
    def _unexplained(self) -> bool:
        return self.unexplained >= HIDDEN * self.steps > 0

    @property
    def _unread(self) -> bool:
        return self.corrupted > CORRUPTED * self.size > 0

    @property
    def _anything_goes(self) -> bool:
        """Whether anything may be missing, or what is there may be wrong."""
        several = self.profiles > 1 or self.processes > 1
        return self.cut or self.unrecorded > 0 or several or self.contradictory > 0 or self._unread
