"""`SiteTally`: what the waits at one site were for, and what nearly all of them have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from gapless.emulation.origins.element_loops import as_line
from gapless.emulation.origins.sameness import ASSUMED, REFILLED, UNCHANGED, Sent
from gapless.emulation.origins.tags import BATCH, COPIED_BACK, MADE, NUMPY, Place, Tag
from gapless.model.cause import Origin, OriginKind

_Value = TypeVar("_Value")

_AGREEING = 0.9
"""Share of the waits after the first step that must have the same origin for it to be reported."""
_MAX_TAGS = 64
"""Distinct origins of one site that are counted; more of them would not agree."""
_MAX_NEW = 64
"""Copies of new memory alone after which no more are compared."""
_SAMPLED = 8
"""Of so many such copies one is looked at from then on."""
_MIN_REFILLED = 2
"""Copies that were compared before "refilled" is reported."""
_MIN_UNCHANGED = 3
"""Steps in which the bytes were compared before "unchanged" is reported."""


class SiteTally:
    """Counts of the waits at one site after the first step in which it waited."""

    __slots__ = (
        "_answers", "_before", "_calls", "_changes", "_first", "_fresh", "_last", "_looked", "_loops",
        "_reads_table", "_steps", "_tables", "_tags", "_unchanged",
    )  # fmt: skip

    def __init__(self, tick: int) -> None:
        self._first = self._before = self._last = tick
        self._changes = False  # whether in some step it sent other memory or bytes than in the step before
        self._unchanged: set[int] = set()
        self._calls = self._looked = self._steps = 0
        self._fresh = 0
        self._tags: Counter[Tag | None] = Counter()
        self._answers: Counter[str] = Counter()
        self._loops: Counter[Place | None] = Counter()
        self._tables: Counter[Tag | None] = Counter()
        self._reads_table = 0

    def _counts(self, tick: int) -> bool:
        """Whether a wait at `tick` counts; if it does, count it and its step."""
        if tick == self._first:
            return False
        if tick != self._last:
            self._steps += 1
            self._before, self._last = self._last, tick
        self._calls += 1
        self._looked += 1
        return True

    def passes_over(self, tick: int) -> bool:
        """Whether to only count a copy at `tick`: a sample stands for a site that sends new memory each time.

        The sample is drawn by a hash of the number, so that it takes no turns with a loop in the script.
        """
        if self.compares or (self._calls * 0x9E3779B1 >> 16) % _SAMPLED == 0:
            return False
        if self._counts(tick):
            self._looked -= 1
        return True

    def add_sent(self, tick: int, tag: Tag | None, parts: Sequence[Sent | None]) -> None:
        """Add a copy to the device of values with this tag; `parts` compare them with earlier copies."""
        if not self._counts(tick):
            return
        if tag in self._tags or len(self._tags) < _MAX_TAGS:
            self._tags[tag] += 1
        self._fresh += tag is not None and tag.tick >= tick - 1
        if parts:
            self._compare(tick, parts)

    @property
    def compares(self) -> bool:
        """Whether the site's copies are still worth comparing: not if it sends new memory each time."""
        return self._answers[""] < _MAX_NEW or self._answers[REFILLED] > 0 or not self._changes

    def _compare(self, tick: int, parts: Sequence[Sent | None]) -> None:
        """Note whether what is copied at `tick` was copied in this site's step before, and was the same."""
        answers = {sent.answer if sent is not None else "" for sent in parts}
        if any(sent is not None and sent.previous == sent.first > self._first for sent in parts):
            self._answers[""] -= 1  # in the step before it only seemed to be new memory
        if None not in answers:
            self._answers[next((each for each in ("", REFILLED, ASSUMED) if each in answers), UNCHANGED)] += 1
        if not answers <= {UNCHANGED, ASSUMED, None} or any(
            sent is not None and sent.previous < self._before for sent in parts
        ):
            self._changes = True
        elif None not in answers:
            self._unchanged.add(tick)

    def add_table(self, tick: int, tag: Tag | None) -> None:
        """Add a read of an index into a tensor on the CPU that has this tag.

        A part of a batch, or of what was copied from the device, is no table.
        """
        if self._counts(tick) and (tag is None or tag.strength < BATCH):
            self._reads_table += 1
            self._tables[tag] += 1

    def add_read(self, tick: int, loop: Place | None) -> None:
        """Add a read of an element for this loop, or of another tensor."""
        if self._counts(tick):
            self._loops[loop] += 1

    def decide(self) -> Origin | None:
        """Return the origin that nearly all waits agree on, the first that applies."""
        is_refilled = self._is_refilled()
        for kind, line, tag in self._candidates(is_refilled):
            return Origin(
                kind=kind,
                line=as_line(line),
                name=tag.name if tag is not None else "",
                calls=self._calls,
                steps=self._steps,
                refilled=is_refilled,
                source=as_line(tag.source) if tag is not None and kind == "numpy" else None,
                certain=not (kind == "unchanged" and self._answers[ASSUMED] > 0),
            )
        return None

    def _candidates(self, is_refilled: bool) -> Iterator[tuple[OriginKind, Place | None, Tag | None]]:
        """Yield the kinds that apply, with line and tag, in the order in which they are decided."""
        if self._reads_table and self._reads_table >= _AGREEING * self._looked:
            table = self._most_common(self._tables)
            yield "cpu-table", table.place if table is not None else None, table
        if loop := self._most_common(self._loops):
            yield "element", loop, None
        tag = self._most_common(self._tags)
        place, strength = (tag.place, tag.strength) if tag is not None else (None, 0)
        if strength == COPIED_BACK:
            yield "copied-back", place, tag
        if strength == BATCH:
            yield "batch", place, tag
        if not self._changes and len(self._unchanged) >= _MIN_UNCHANGED:
            yield "unchanged", place, tag
        if is_refilled:
            yield "refilled", place, tag
        if self._fresh < _AGREEING * self._looked:
            return  # parts of what was made before the loop: data
        if tag is not None and tag.meets:
            return
        if strength == NUMPY:
            yield "numpy", place, tag
        if strength == MADE:
            yield "made", place, tag

    def _most_common(self, counts: Counter[_Value]) -> _Value | None:
        """Return what nearly all waits have in common; None if they have nothing."""
        common = counts.most_common(1)
        return common[0][0] if common and common[0][1] >= _AGREEING * self._looked else None

    def _is_refilled(self) -> bool:
        """Whether nearly all comparisons with earlier copies of the same memory saw writes."""
        refilled = self._answers[REFILLED]
        return refilled >= _MIN_REFILLED and refilled >= _AGREEING * self._answers.total()
