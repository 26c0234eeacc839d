"""`Verdict`: the first lines of every report: what is lost, why, and what to change first."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.source import SourceLine

Unit = Literal["ns", "bytes", "syncs", "retries", ""]
Level = Literal["act", "fine", "unknown", "failed"]
"""``act``: something is worth changing; ``fine``: nothing is; ``unknown``: not enough was recorded to say;
``failed``: the run itself went wrong (out of memory, results that differ)."""


class Change(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One thing to change, and the step (or the memory) before and after it.

    - `what`: an action in the imperative.
    - `line`: where; `lines`: all line numbers of the change in that file; `place`: what is known instead of a
      line.
    - `before`, `after`: in `unit` per step, each change after those listed before it; -1: unknown.
    - `bound`: the true `after` lies between the two: the saving is an upper limit.
    - `findings`: positions in `Report.findings` that it fixes; `codes`: their rules.
    """

    what: str
    line: SourceLine | None = None
    lines: tuple[int, ...] = ()
    place: str = ""
    before: float = -1.0
    after: float = -1.0
    unit: Unit = "ns"
    bound: bool = False
    codes: tuple[str, ...] = ()
    findings: tuple[int, ...] = ()


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The answer in a few lines.

    - `sentence`: what the step loses and to what, without a full stop.
    - `why`: the evidence; `facts`: what else is worth knowing (how fast such steps are, that the memory
      suffices).
    - `do_first`: the shortest list of changes, at most five, in order; `per`: what its numbers are per ("":
      the whole).
    - `confidence`: what the numbers rest on ("estimated for an A100").
    - `not_seen`: what was not checked, with the option that checks it.

    >>> Verdict(sentence="Nothing worth fixing: no syncs in 10 training steps", level="fine").do_first
    ()
    """

    sentence: str
    level: Level = "unknown"
    why: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    do_first: tuple[Change, ...] = ()
    confidence: str = ""
    not_seen: tuple[str, ...] = ()
    per: str = "per step"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Everything after the sentence: why, and the facts."""
        return (*self.why, *self.facts)

    @property
    def headline(self) -> str:
        """The sentence with its full stop."""
        return self.sentence if self.sentence.endswith((".", ".)")) else f"{self.sentence}."
