"""What makes numbers wrong stands before whatever costs time: races, and mistakes with CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gapless.analyze.verdicts.changes import MOST
from gapless.model import Change, Finding, Report, Verdict
from gapless.model.wording import count

_NAMED = 3
_REFUSED, _DRAWN = "capture-refused", "generator-shared-by-threads"


def with_faults(verdict: Verdict, report: Report) -> Verdict:
    """`verdict`, with the races and the mistakes with CUDA graphs of `report` first."""
    faults = [(at, one) for at, one in enumerate(report.findings) if one.is_fault]
    if not faults:
        return verdict
    sentence = "; ".join(_sentences([one for _, one in faults]))
    why = tuple(faults[0][1].evidence[:2])
    if verdict.level == "failed":  # it does not run as it is
        return msgspec.structs.replace(verdict, why=(*verdict.why, sentence, *why))
    # What CUDA refuses raises: then the end of the run follows from it.
    ended = report.ending.how == "error" and any(one.name == _REFUSED for _, one in faults)
    own = f"{verdict.sentence[:1].lower()}{verdict.sentence[1:]}"
    also = f"Therefore {own}" if ended and not report.steps.seen else f"Apart from that: {own}"
    return msgspec.structs.replace(
        verdict,
        sentence=sentence,
        level="failed",
        why=(*why, also, *verdict.why),
        do_first=(*_changes(faults), *verdict.do_first)[:MOST],
    )


def _sentences(faults: list[Finding]) -> Iterator[str]:
    refused = [one for one in faults if one.name == _REFUSED]
    if refused:
        yield f"CUDA refuses to capture a graph{_places(refused)}"
    races = [one for one in faults if one.is_race and one.name != _DRAWN]
    if races:
        yield f"Wrong numbers possible on a GPU: {count(len(races), 'race')}{_places(races)}"
    drawn = [one for one in faults if one.name == _DRAWN]
    if drawn:
        yield f"Random numbers differ in each run despite the seed{_places(drawn)}"
    wrong = [one for one in faults if one.is_graph and one.name != _REFUSED]
    if wrong:
        what = count(len(wrong), "mistake")
        yield f"Wrong numbers on a GPU: {what} with CUDA graphs{_places(wrong)}"


def _places(faults: list[Finding]) -> str:
    places = list(dict.fromkeys(one.line.short for one in faults if one.line is not None))
    rest = f" and {count(len(places) - _NAMED, 'other line')}" if len(places) > _NAMED else ""
    return f" ({', '.join(places[:_NAMED])}{rest})" if places else ""


def _changes(faults: list[tuple[int, Finding]]) -> list[Change]:
    """One change for each action and file."""
    made: dict[tuple[str, str], Change] = {}
    for at, one in faults:
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
