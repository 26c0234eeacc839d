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

- ``graph``: the kernels of graph launches; ``launch``: the GPU work of other launches;
- ``record``: GPU work that the file's own flow arrows refer to;
- ``call``: launches of GPU work;
- ``operator``: operators and annotations, which the profiler numbers;
- ``stretch``: about so many launches with their GPU work, all within one interval;
- ``scattered``: at least so many launches with their GPU work, here and there;
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
    """How complete a profile is: everything that explains a profile asks this first.

    - `launches`: calls that put work on the GPU; `records`: the recorded work; `missing`: kinds that are
      incomplete, the gravest first.
    - `cut`: the file is cut off; `broken`: unreadable events; `corrupted`: bytes skipped, of `size`.
    - `profiles`: profiles in the file, one after the other; `processes`: launching processes.
    - `contradictory`: records with impossible times.
    - `excerpt`: CPU events of a longer recording before the first here.
    - `bare`: no operators at all; `endless`: no mark of the recording's end; `unmarked`: marks of steps are
      missing.
    - `silent`, `unrecorded`: nanoseconds without events at the beginning and the end.
    - `hidden`: nanoseconds of the `steps` that are idle as recorded, but could hold missing work;
      `unexplained`: those during which missing CPU events begin.

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
