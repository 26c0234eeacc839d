"""What to do first: findings that one change mends, and the length of a step after each change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from gapless.model import NOTHING, Change, Finding, WaitRule
from gapless.model.verdict import Unit
from gapless.rules import rule
from gapless.rules._by_use import READ_ONCE
from gapless.rules._profile import LAUNCH_LESS
from gapless.rules.causes import COPY_WHERE_MADE

MAX_CHANGES = 5
"""Changes named; nobody works off a longer list."""
_MAX_ACTION_LENGTH = 72
"""Characters of an action, so that it fits on a line."""
_MIN_SHARE = 0.001
"""A change that saves less than this share of a step is not worth naming."""


@dataclass
class _Draft:
    """Findings (by position) that one edit mends, and what they cost together."""

    action: str
    members: list[int] = field(default_factory=list)
    saving: float = 0.0
    leaves: int = 0


def changes(
    findings: Sequence[Finding],
    savings: Iterable[tuple[int, float]],
    before: float,
    *,
    bound: bool = False,
    unit: Unit = "ns",
    first: Sequence[int] = (),
) -> tuple[Change, ...]:
    """Return the shortest list of changes, with a step's length before and after each.

    `savings` are positions in `findings` with what mending them saves once the earlier ones are mended, in
    that order; `before` is the step as it is. ``bound=True`` marks savings as upper limits. Changes that mend
    one of the findings `first` come first.
    """
    drafts: dict[tuple[str, str], _Draft] = {}
    for position, saving in savings:
        finding = findings[position]
        edit = action_of(finding)
        if edit.startswith(NOTHING):
            continue
        file = finding.line.file if finding.line is not None else finding.place
        if edit == LAUNCH_LESS:  # of the whole step, wherever in it launches cost time
            file = ""
        draft = drafts.setdefault((edit, file), _Draft(edit))
        draft.members.append(position)
        draft.saving += saving * (1 - _remaining_share(finding, edit))
        draft.leaves = max(draft.leaves, _remaining_syncs(finding) if unit == "syncs" else 0)
    results = []
    floor = _MIN_SHARE * before
    for draft in drafts.values():
        draft.saving -= draft.leaves
    worth = [draft for draft in drafts.values() if draft.saving >= max(floor, 1e-9)]
    leading = set(first)
    for draft in sorted(worth, key=lambda draft: (not leading & {*draft.members}, -draft.saving))[
        :MAX_CHANGES
    ]:
        if before <= 0:  # earlier changes leave nothing to save
            break
        after = max(round(before - draft.saving, 6), 0.0)  # rounding removes what sums of fractions leave
        results.append(_change(draft, findings, before, after, bound, unit))
        before = after
    return tuple(results)


def _change(
    draft: _Draft, findings: Sequence[Finding], before: float, after: float, bound: bool, unit: Unit
) -> Change:
    """Return the change of `draft`, with the step `before` and `after` it."""
    mended = [findings[position] for position in draft.members]
    first = next((finding for finding in mended if finding.line is not None), mended[0])
    if draft.action == LAUNCH_LESS and len(mended) > 1:  # no place of them is where to change something
        first = msgspec.structs.replace(first, line=None, place="")
    file = first.line.file if first.line is not None else None
    lines = {at.line for finding in mended for at in finding.lines if at.file == file}
    return Change(
        what=draft.action,
        line=first.line,
        lines=tuple(sorted(lines)),
        place=first.place,
        before=before,
        after=after,
        unit=unit,
        bound=bound or any(finding.price is not None and finding.price.at_most for finding in mended),
        codes=tuple(dict.fromkeys(finding.code for finding in mended)),
        findings=tuple(sorted(draft.members)),
    )


def action_of(finding: Finding) -> str:
    """Return what to do about a finding in a few words: its own, its rule's, or its remedy's first clause."""
    return finding.change or rule(finding.code).change or _first_clause(finding.remedy)


def _remaining_share(finding: Finding, edit: str) -> float:
    """Return the share of the finding's copies that `edit` leaves, one for each value that is made: at most
    as many as the line has that copies most often."""
    if edit != COPY_WHERE_MADE:
        return 0.0
    waits = [spot.waits for spot in finding.spots]
    return max(waits) / sum(waits) if any(waits) else 1.0


def _remaining_syncs(finding: Finding) -> int:
    """Return how many syncs per phase the rule's own change leaves, such as one read at its end."""
    own_rule, action = rule(finding.code), action_of(finding)
    if not isinstance(own_rule, WaitRule) or not finding.frequency.times:
        return 0
    return int(action in READ_ONCE) or (own_rule.leaves if action == own_rule.change else 0)


def _first_clause(remedy: str) -> str:
    """Return the first clause of a remedy, shortened to fit in a list."""
    clause = re.split(r"[;:](?=\s)|, (?:and|which|that|where|so)\b|\. ", remedy, maxsplit=1)[0].strip()
    if len(clause) <= _MAX_ACTION_LENGTH:
        return clause
    cut = clause[: _MAX_ACTION_LENGTH - 1].rsplit(" ", 1)[0]
    return (cut if cut.count("`") % 2 == 0 else cut.rsplit("`", 1)[0].rstrip()) + " …"
