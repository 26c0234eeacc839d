"""Put what makes numbers wrong before what costs time: races, and mistakes with CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gapless.analyze.verdicts.changes import MAX_CHANGES
from gapless.model import Change, Finding, Report, Verdict
from gapless.model.wording import count

_MAX_LINES_NAMED = 3
"""Lines named in a sentence."""
_REFUSED, _SHARED_GENERATOR = "capture-refused", "generator-shared-by-threads"


def with_faults(verdict: Verdict, report: Report) -> Verdict:
    """Return `verdict` with the races and the CUDA-graph mistakes of `report` first."""
    faults = [(at, fault) for at, fault in enumerate(report.findings) if fault.is_fault]
    if not faults:
        return verdict
    sentence = "; ".join(_sentences([fault for _, fault in faults]))
    why = tuple(faults[0][1].evidence[:2])
    if verdict.level == "failed":  # the script does not run as it is
        return msgspec.structs.replace(verdict, why=(*verdict.why, sentence, *why))
    # A refused capture raises, so the run ended because of it.
    ended = report.ending.how == "error" and any(fault.name == _REFUSED for _, fault in faults)
    own = f"{verdict.sentence[:1].lower()}{verdict.sentence[1:]}"
    own_sentence = f"Therefore {own}" if ended and not report.steps.seen else f"Apart from that: {own}"
    return msgspec.structs.replace(
        verdict,
        sentence=sentence,
        level="failed",
        why=(*why, own_sentence, *verdict.why),
        do_first=(*_changes(faults), *verdict.do_first)[:MAX_CHANGES],
    )


def _sentences(faults: list[Finding]) -> Iterator[str]:
    """Yield a sentence for each kind of fault."""
    refused = [fault for fault in faults if fault.name == _REFUSED]
    if refused:
        yield f"CUDA refuses to capture a graph{_places(refused)}"
    races = [fault for fault in faults if fault.is_race and fault.name != _SHARED_GENERATOR]
    if races:
        yield f"Wrong numbers possible on a GPU: {count(len(races), 'race')}{_places(races)}"
    drawn = [fault for fault in faults if fault.name == _SHARED_GENERATOR]
    if drawn:
        yield f"Random numbers differ in each run despite the seed{_places(drawn)}"
    wrong = [fault for fault in faults if fault.is_graph and fault.name != _REFUSED]
    if wrong:
        mistakes = count(len(wrong), "mistake")
        yield f"Wrong numbers on a GPU: {mistakes} with CUDA graphs{_places(wrong)}"


def _places(faults: list[Finding]) -> str:
    """Return the lines of the faults in parentheses."""
    places = list(dict.fromkeys(fault.line.short for fault in faults if fault.line is not None))
    rest = (
        f" and {count(len(places) - _MAX_LINES_NAMED, 'other line')}"
        if len(places) > _MAX_LINES_NAMED
        else ""
    )
    return f" ({', '.join(places[:_MAX_LINES_NAMED])}{rest})" if places else ""


def _changes(faults: list[tuple[int, Finding]]) -> list[Change]:
    """Return one change for each action and file."""
    by_action: dict[tuple[str, str], Change] = {}
    for at, fault in faults:
        key = (fault.change, fault.line.file if fault.line is not None else "")
        earlier = by_action.get(key)
        numbers = {
            *(earlier.lines if earlier else ()),
            *((fault.line.line,) if fault.line is not None else ()),
        }
        by_action[key] = Change(
            what=fault.change,
            line=earlier.line if earlier is not None else fault.line,
            lines=tuple(sorted(numbers)),
            place=fault.place,
            unit="",
            codes=(fault.code,),
            findings=(*(earlier.findings if earlier is not None else ()), at),
        )
    return list(by_action.values())
