"""What the verdict says of compiled code: how many breaks and recompilations, where, and what to do first."""

from __future__ import annotations

import msgspec

from gapless.analyze.verdicts.changes import MOST
from gapless.model import Change, CompiledRule, Finding, Report, Verdict
from gapless.model.wording import count
from gapless.rules import rules_of_kind

COMPILED = "GAP51"
"""How the codes of compiled code begin."""
BREAK = "GAP511"
_NAMED = 3


def with_compiled(verdict: Verdict, report: Report) -> Verdict:
    """`verdict`, with what was found in compiled code: first where nothing else is to be done."""
    met = [(at, one) for at, one in enumerate(report.findings) if one.code.startswith(COMPILED)]
    if not met:
        return verdict
    said = _sentence(met, report)
    todo = (*verdict.do_first, *_changes(_apart(met, verdict.do_first)))[:MOST]
    if verdict.level == "act":
        return msgspec.structs.replace(verdict, why=(*verdict.why, said), do_first=todo)
    if verdict.level == "failed":
        return msgspec.structs.replace(verdict, why=(*verdict.why, said))
    syncs = verdict.sentence
    return msgspec.structs.replace(
        verdict, sentence=said, level="act", why=(syncs, *verdict.why), do_first=todo, per=""
    )


def _sentence(met: list[tuple[int, Finding]], report: Report) -> str:
    """``Compiled code: 3 graph breaks and 7 recompilations (train.py:8, train.py:12)``."""
    breaks = next(rule for rule in rules_of_kind(CompiledRule) if rule.code == BREAK)
    broken = sum(hit.calls for one in report.compiled for hit in breaks.of_compiled(one))
    again = sum(one.again for one in report.compiled)
    parts = [count(broken, "graph break")] if any(one.code == BREAK for _, one in met) else []
    parts += (
        [count(again, "recompilation")] if any(one.code in ("GAP512", "GAP513") for _, one in met) else []
    )
    if any(one.code == "GAP516" for _, one in met):
        parts.insert(0, "a result is used after its CUDA graph has overwritten it, which fails on a GPU")
    if not parts:
        parts = ["CUDA graphs are skipped, cut, or captured again and again"]
    places = list(dict.fromkeys(one.line.short for _, one in met if one.line is not None))
    rest = f" and {count(len(places) - _NAMED, 'other line')}" if len(places) > _NAMED else ""
    where = f" ({', '.join(places[:_NAMED])}{rest})" if places else ""
    return f"Compiled code: {' and '.join(parts)}{where}"


def _changes(met: list[tuple[int, Finding]]) -> list[Change]:
    """One change for each action and file; what it saves is not known."""
    made: dict[tuple[str, str], Change] = {}
    for at, one in met:
        line = one.line
        key = (one.change, line.file if line is not None else one.place)
        known = made.get(key)
        numbers = {*(known.lines if known else ()), *((line.line,) if line is not None else ())}
        made[key] = Change(
            what=one.change,
            line=known.line if known is not None else line,
            lines=tuple(sorted(numbers)),
            place=one.place,
            unit="",
            codes=tuple(dict.fromkeys((*(known.codes if known is not None else ()), one.code))),
            findings=(*(known.findings if known is not None else ()), at),
        )
    return list(made.values())


def _apart(met: list[tuple[int, Finding]], todo: tuple[Change, ...]) -> list[tuple[int, Finding]]:
    """Without the breaks at lines that a change of `todo` touches: a sync that is mended breaks no graph."""
    touched = {(one.line.file, number) for one in todo if one.line is not None for number in one.lines}
    return [
        (at, one)
        for at, one in met
        if one.code != BREAK or one.line is None or (one.line.file, one.line.line) not in touched
    ]
