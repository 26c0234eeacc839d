"""What the verdict says of compiled code: breaks and recompilations, where, and what to do first."""

from __future__ import annotations

import msgspec

from gapless.analyze.verdicts.changes import MAX_CHANGES
from gapless.model import Change, CompiledRule, Finding, Report, Verdict
from gapless.model.wording import count
from gapless.rules import rules_of_kind

COMPILED = "GAP51"
"""Prefix of the codes of rules about compiled code."""
BREAK = "GAP511"
"""The rule for graph breaks."""
_MAX_LINES_NAMED = 3
"""Lines named in the sentence."""


def with_compiled_code(verdict: Verdict, report: Report) -> Verdict:
    """Return `verdict` with what was found in compiled code; that comes first if nothing else is to do."""
    met = [(at, finding) for at, finding in enumerate(report.findings) if finding.code.startswith(COMPILED)]
    if not met:
        return verdict
    compiled_sentence = _sentence(met, report)
    todo = (*verdict.do_first, *_changes(_without_mended_lines(met, verdict.do_first)))[:MAX_CHANGES]
    if verdict.level == "act":
        return msgspec.structs.replace(verdict, why=(*verdict.why, compiled_sentence), do_first=todo)
    if verdict.level == "failed":
        return msgspec.structs.replace(verdict, why=(*verdict.why, compiled_sentence))
    syncs = verdict.sentence
    return msgspec.structs.replace(
        verdict, sentence=compiled_sentence, level="act", why=(syncs, *verdict.why), do_first=todo, per=""
    )


def _sentence(met: list[tuple[int, Finding]], report: Report) -> str:
    """Return ``Compiled code: 3 graph breaks and 7 recompilations (train.py:8, train.py:12)``."""
    breaks = next(rule for rule in rules_of_kind(CompiledRule) if rule.code == BREAK)
    broken = sum(hit.calls for code in report.compiled for hit in breaks.of_compiled(code))
    again = sum(code.again for code in report.compiled)
    parts = [count(broken, "graph break")] if any(finding.code == BREAK for _, finding in met) else []
    parts += (
        [count(again, "recompilation")]
        if any(finding.code in ("GAP512", "GAP513") for _, finding in met)
        else []
    )
    if any(finding.code == "GAP516" for _, finding in met):
        parts.insert(0, "a result is used after its CUDA graph has overwritten it, which fails on a GPU")
    if not parts:
        parts = ["CUDA graphs are skipped, cut, or captured again and again"]
    places = list(dict.fromkeys(finding.line.short for _, finding in met if finding.line is not None))
    rest = (
        f" and {count(len(places) - _MAX_LINES_NAMED, 'other line')}"
        if len(places) > _MAX_LINES_NAMED
        else ""
    )
    where = f" ({', '.join(places[:_MAX_LINES_NAMED])}{rest})" if places else ""
    return f"Compiled code: {' and '.join(parts)}{where}"


def _changes(met: list[tuple[int, Finding]]) -> list[Change]:
    """Return one change for each action and file; what it saves is unknown."""
    by_place: dict[tuple[str, str], Change] = {}
    for at, finding in met:
        line = finding.line
        key = (finding.change, line.file if line is not None else finding.place)
        earlier = by_place.get(key)
        numbers = {*(earlier.lines if earlier else ()), *((line.line,) if line is not None else ())}
        by_place[key] = Change(
            what=finding.change,
            line=earlier.line if earlier is not None else line,
            lines=tuple(sorted(numbers)),
            place=finding.place,
            unit="",
            codes=tuple(dict.fromkeys((*(earlier.codes if earlier is not None else ()), finding.code))),
            findings=(*(earlier.findings if earlier is not None else ()), at),
        )
    return list(by_place.values())


def _without_mended_lines(
    met: list[tuple[int, Finding]], todo: tuple[Change, ...]
) -> list[tuple[int, Finding]]:
    """Leave out breaks at lines that a change of `todo` touches: a mended sync breaks no graph."""
    touched = {
        (change.line.file, number) for change in todo if change.line is not None for number in change.lines
    }
    return [
        (at, finding)
        for at, finding in met
        if finding.code != BREAK
        or finding.line is None
        or (finding.line.file, finding.line.line) not in touched
    ]
