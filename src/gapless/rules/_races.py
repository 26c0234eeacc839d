"""Shared by the rules of races: describe both accesses and what lies between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gapless.model import Hit, RaceRule, Site, SourceLine
from gapless.model.race import Access, Race, RaceKind

_CAUSES = {
    "early-event": "the event that was waited for was recorded too early, at {place}: before the work it "
    "should cover",
    "unrecorded-event": "the event that was waited for at {place} had not been recorded: such a wait "
    "returns immediately",
    "other-event": "the event that was waited for was recorded in another stream, at {place}",
}


class KindRule(RaceRule):
    """A rule for each race of one kind."""

    kind: ClassVar[RaceKind] = "unordered"
    of_the_first: ClassVar[bool] = False
    """Whether the line to change is that of the earlier access."""

    def of_race(self, race: Race) -> Hit | None:
        if race.kind != self.kind:
            return None
        own, other = (race.earlier, race.later) if self.of_the_first else (race.later, race.earlier)
        stack = own.stack or other.stack
        evidence = (*self.evidence(race), *describe_cause(race), f"on a GPU {self.wrong(race)}")
        site = Site(operator=own.what, mechanism="none", stack=stack) if stack else None
        return Hit(evidence=evidence, remedy=self.remedy(race), site=site, calls=race.times)

    def evidence(self, race: Race) -> Iterator[str]:
        """Yield descriptions of both accesses."""
        raise NotImplementedError

    def wrong(self, race: Race) -> str:
        """Return what goes wrong on a real GPU, and how often."""
        raise NotImplementedError

    def remedy(self, race: Race) -> str:
        """Return what to write instead."""
        return self.advice


def describe_line(line: SourceLine | None, code: bool = True) -> str:
    """Return ``train.py:10 `h = x.cpu()` ``, or that the line is unknown."""
    if line is None:
        return "a line that is not known"
    text = line.code.strip()
    return f"{line.short} `{text}`" if code and text and "`" not in text and len(text) <= 80 else line.short


def describe_access(access: Access, did: str) -> str:
    """Return ``train.py:10 `y = x * 2` writes it on stream 1``; `did` is the words ``writes it``."""
    operation = f" ({access.what})" if access.what and "copy" not in access.what else ""
    return f"{describe_line(access.line)} {did} on {access.where}{operation}"


def reads_or_writes(access: Access) -> str:
    """Return ``writes it`` or ``reads it``."""
    return "writes it" if access.writes else "reads it"


def describe_cause(race: Race) -> Iterator[str]:
    """Yield why the existing wait does not help."""
    text = _CAUSES.get(race.cause)
    if text is not None and race.cause_stack:
        line = Access(stack=race.cause_stack).line
        yield text.format(place=describe_line(line))
