"""Waits of two runs, line by line: a wait that moved elsewhere is no gain."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gapless.analyze.run.counted import select_events
from gapless.analyze.run.steps import find_steps
from gapless.fixes.proof.edited_lines import FileEdit
from gapless.model import Session
from gapless.model.fix import LineWaits
from gapless.model.source import SourceLine

Place = tuple[str, int]
"""A file, relative to the project's root if it is below it, and a line of the version before."""


@dataclass(frozen=True)
class RunWaits:
    """The waits of a run: in all and per steady step, by place; and each place's line and expression."""

    totals: Counter[Place]
    per_step: dict[Place, float]
    lines: dict[Place, SourceLine]
    expressions: dict[Place, str]
    steps: int

    @property
    def rate(self) -> float:
        """Waits per steady step."""
        return sum(self.per_step.values())


def count_waits(session: Session, root: str, place: Callable[[str, int], Place]) -> RunWaits:
    """Count the waits of `session`, whose script ran in the folder `root`; `place` maps lines."""
    inside = root + os.sep
    steps = find_steps(session.marks)
    events = steps.assign_ticks(session.events, session.strands)
    events = select_events(msgspec.structs.replace(session, events=events), steps)
    steady = frozenset(steps.steady)
    totals: Counter[Place] = Counter()
    in_steps: Counter[Place] = Counter()
    lines: dict[Place, SourceLine] = {}
    expressions: dict[Place, str] = {}
    for event in events:
        line = session.sites[event.site].line
        if line is None:
            continue
        file = line.file.removeprefix(inside)
        where = place(file, line.line) if line.file.startswith(inside) else (line.file, line.line)
        lines.setdefault(where, msgspec.structs.replace(line, file=file))
        site = session.sites[event.site]
        text = site.expression or f"{site.operator} {site.call} {site.detail}"  # of copies it is unknown
        expressions.setdefault(where, "".join(text.split()))
        totals[where] += event.waits
        if event.phase == "train" and steps.of(event.tick) in steady:
            in_steps[where] += event.waits
    number = max(len(steps.steady), 1)
    per_step = {where: n / number for where, n in in_steps.items()}
    return RunWaits(totals, per_step, lines, expressions, steps.seen)


def map_places(
    edits: Sequence[FileEdit], script_before: str, script_after: str
) -> Callable[[str, int], Place]:
    """Return a function from a line after the edits to its place before; new lines get negative numbers."""
    by_file: Mapping[str, FileEdit] = {edit.file: edit for edit in edits}

    def place(file: str, line: int) -> Place:
        file = script_before if file == script_after else file
        edit = by_file.get(file)
        return (file, line if edit is None else edit.places.get(line, -line))

    return place


def follow_expressions(before: RunWaits, after: RunWaits, edits: Sequence[FileEdit]) -> RunWaits:
    """Return `after` with the places of expressions that only moved within the lines that replaced theirs."""
    moved: dict[Place, Place] = {}
    for edit in edits:
        for hunk in edit.hunks:
            old = [(edit.file, line) for line in hunk.removed if before.totals[edit.file, line]]
            new = [(edit.file, edit.places.get(line, -line)) for line in hunk.added]
            for where in new:
                text = after.expressions.get(where)
                same = [place for place in old if text and before.expressions[place] == text]
                if same:
                    moved[where] = same[0]
                    old.remove(same[0])
    if all(where == place for where, place in moved.items()):
        return after

    def target(where: Place) -> Place:
        taken = where in moved.values() and where not in moved  # something else waits there now
        return moved.get(where, (where[0], -abs(where[1])) if taken else where)

    totals: Counter[Place] = Counter()
    per_step: dict[Place, float] = {}
    for where in after.totals:
        totals[target(where)] += after.totals[where]
        per_step[target(where)] = per_step.get(target(where), 0.0) + after.per_step.get(where, 0.0)
    lines = {target(where): line for where, line in after.lines.items()}
    expressions = {target(where): text for where, text in after.expressions.items()}
    return RunWaits(totals, per_step, lines, expressions, after.steps)


def compare_waits(before: RunWaits, after: RunWaits) -> tuple[tuple[LineWaits, ...], str]:
    """Return the lines whose waits differ, and why the change is no gain ("" if it is none or a gain)."""
    changed = sorted(
        (where for where in {**before.totals, **after.totals} if _differ(before, after, where)),
        key=lambda where: (where[0], abs(where[1])),
    )
    lines = tuple(
        LineWaits(
            line=(before.lines.get(where) or after.lines[where]),
            before=before.per_step.get(where, 0.0),
            after=after.per_step.get(where, 0.0),
            total_before=before.totals[where],
            total_after=after.totals[where],
        )
        for where in changed
    )
    was, now = before.totals.total(), after.totals.total()
    more = [line for line in lines if line.total_after > line.total_before]
    if not more or now < was:
        return lines, ""
    first = max(more, key=lambda line: line.total_after - line.total_before)
    verb = "move" if now == was else "are more"
    place = f"{first.line.short} waits {first.total_after} times instead of {first.total_before}"
    return lines, f"syncs {verb}: {place}, and the whole run {now} times instead of {was}"


def _differ(before: RunWaits, after: RunWaits, where: Place) -> bool:
    return before.totals[where] != after.totals[where]
