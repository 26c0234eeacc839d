"""`Coverage`: how complete a profile's recording is."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.wording import count, duration, percent

MIN_COMPLETE_SHARE = 0.95
"""Share of the records from which a profile counts as complete; below it no verdict is given."""
MAX_HIDDEN_SHARE = 0.05
"""Share of the steps that missing work may fill before no verdict is given."""
MAX_CORRUPTED_SHARE = 0.02
"""Share of the file that may be unreadable."""

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
_IDLENESS_KINDS: tuple[Kind, ...] = ("graph", "launch", "record", "stretch", "scattered", "around")
"""Kinds that are needed to know when the GPU was idle."""


class Missing(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Of one kind, `seen` records exist of `of` expected ones."""

    kind: Kind
    seen: int
    of: int

    @property
    def share(self) -> float:
        """The share that exists, 0 to 1."""
        return self.seen / self.of if self.of else 1.0

    @property
    def sentence(self) -> str:
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
        """The smallest share of any kind, 0 to 1."""
        return min((item.share for item in self.missing), default=1.0)

    @property
    def complete(self) -> bool:
        """Whether the recording is complete enough for a verdict."""
        missing = (
            self.share < MIN_COMPLETE_SHARE
            or self._hides_too_much
            or self._unexplained_too_long
            or self.unmarked
        )
        return not (self._is_unreliable or missing)

    @property
    def idle_known(self) -> bool:
        """Whether the GPU's idleness is known, even if its reasons are not."""
        gone = any(item.share < MIN_COMPLETE_SHARE and item.kind in _IDLENESS_KINDS for item in self.missing)
        return not (self._is_unreliable or gone or self._hides_too_much)

    @property
    def reason(self) -> str:
        """Why no verdict can be given, without a full stop; "" if one can."""
        reasons = [
            (self.profiles > 1, f"the file contains {self.profiles} profiles, one after the other"),
            (
                self.processes > 1,
                f"the file contains the launches of {self.processes} processes but does not say which "
                "work belongs to which",
            ),
            *((item.share < MIN_COMPLETE_SHARE, item.sentence) for item in self.missing),
            (self.cut, "the file is cut off"),
            (self._too_corrupted, f"{percent(self.corrupted / (self.size or 1))} of the file cannot be read"),
            (
                self.unrecorded > 0,
                f"nothing was recorded in the last {duration(self.unrecorded)} of the recording",
            ),
            (self.contradictory > 0, f"the times of {count(self.contradictory, 'event')} are impossible"),
            (
                self.unmarked and self.share >= MIN_COMPLETE_SHARE,
                "CPU events are missing, including step marks",
            ),
            (
                self._hides_too_much and self.share >= MIN_COMPLETE_SHARE,
                f"missing GPU work may fill {percent(self.hidden / (self.steps or 1))} of the time",
            ),
            (
                self._unexplained_too_long and self.share >= MIN_COMPLETE_SHARE and not self._hides_too_much,
                f"missing CPU events may explain {percent(self.unexplained / (self.steps or 1))} of the time",
            ),
        ]
        return ", and ".join([reason for applies, reason in reasons if applies][:2])

    @property
    def remedy(self) -> str:
        """How to record so that nothing is missing, as an imperative."""
        if self.profiles > 1 or self.processes > 1:
            return "write each process and each profile to its own file"
        if self.cut:
            return "record again, and keep the process alive until the trace is written"
        if any(
            item.share < MIN_COMPLETE_SHARE and item.kind in ("graph", "launch", "record")
            for item in self.missing
        ):
            return (
                "record fewer steps at once (`schedule=`), because full buffers drop work, and let the GPU "
                "finish before the profiler stops"
            )
        return "record again, or copy the file again: it was changed after it was written"

    @property
    def _hides_too_much(self) -> bool:
        return self.hidden >= MAX_HIDDEN_SHARE * self.steps > 0

    @property
    def _unexplained_too_long(self) -> bool:
        return self.unexplained >= MAX_HIDDEN_SHARE * self.steps > 0

    @property
    def _too_corrupted(self) -> bool:
        return self.corrupted > MAX_CORRUPTED_SHARE * self.size > 0

    @property
    def _is_unreliable(self) -> bool:
        """Whether anything may be missing, or records may be wrong."""
        several = self.profiles > 1 or self.processes > 1
        return self.cut or self.unrecorded > 0 or several or self.contradictory > 0 or self._too_corrupted
