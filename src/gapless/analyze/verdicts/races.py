"""A race stands before whatever costs time: what may be wrong need not be fast."""

from __future__ import annotations

import msgspec

from gapless.analyze.verdicts.changes import MOST
from gapless.model import Change, Finding, Report, Verdict
from gapless.model.wording import count

_NAMED = 3


def with_races(told: Verdict, found: Report) -> Verdict:
    """`told`, with the races of `found` first."""
    races = [(at, one) for at, one in enumerate(found.findings) if one.is_race]
    if not races:
        return told
    places = list(dict.fromkeys(one.line.short for _, one in races if one.line is not None))
    rest = f" and {count(len(places) - _NAMED, 'other line')}" if len(places) > _NAMED else ""
    where = f" ({', '.join(places[:_NAMED])}{rest})" if places else ""
    sentence = f"Wrong numbers possible on a GPU: {count(len(races), 'race')}{where}"
    why = tuple(races[0][1].evidence[:2])
    if told.level == "failed":  # it does not run as it is
        return msgspec.structs.replace(told, why=(*told.why, sentence, *why))
    return msgspec.structs.replace(
        told,
        sentence=sentence,
        level="failed",
        why=(*why, f"Apart from that: {told.sentence[:1].lower()}{told.sentence[1:]}", *told.why),
        do_first=(*_changes(races), *told.do_first)[:MOST],
    )


def _changes(races: list[tuple[int, Finding]]) -> list[Change]:
    """One change for each action and file."""
    made: dict[tuple[str, str], Change] = {}
    for at, one in races:
        key = (one.change, one.line.file if one.line is not None else "")
        known = made.get(key)
        numbers = {*(known.lines if known else ()), *((one.line.line,) if one.line is not None else ())}
        made[key] = Change(
            what=one.change,
            line=known.line if known is not None else one.line,
            lines=tuple(sorted(numbers)),
            place=one.place,
            unit="",
            codes=(one.code,),
            findings=(*(known.findings if known is not None else ()), at),
        )
    return list(made.values())
