"""Reports with hostile names in them, and reports of profiles."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st
from sessions import example
from trace_builder import training

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.profile_report import report_run
from gapless.analyze.tables.profile_tables import tables
from gapless.model import Change, Ending, Finding, Report, SourceLine, Table, Verdict
from gapless.model.table import Column, Row

HOSTILE = (
    "</script><script>alert(1)</script>",
    "a|b`c``d|",
    "::error file=x::owned\n::warning::two",
    "\u202egnp.exe",
    "nul\0nul\x1b[31m",
    "<img src=x onerror=y> @somebody https://example.org [a](b)",
    "&amp; ]]> <!-- %25 %0A",
    "\udce9\ud800",
    "k" * 3_000,
)

names = st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1, max_size=30))


def hostile(name: str) -> Report:
    """The example with `name` wherever a name can be."""
    report = example(Ending(how="error", status=1, message=name))
    line = SourceLine(f"/work/{name}.py", 7, name, name)
    below = SourceLine(f"/venv/site-packages/lib/{name}.py", 8, name, name, "lib")

    def renamed(finding: Finding) -> Finding:
        return msgspec.structs.replace(
            finding, line=line, remedy=f"use `{name}`, {name}", evidence=(name,), library_stack=(below,)
        )

    findings = (
        *map(renamed, report.findings),
        msgspec.structs.replace(renamed(report.findings[0]), line=None, place=name),
    )
    change = Change(what=name, line=line, place=name, before=2e6, after=1e6)
    verdict = Verdict(
        sentence=name, why=(name,), facts=(name,), do_first=(change,), confidence=name, not_seen=(name,)
    )
    row = Row((name, 0.5, line, name))
    columns = (Column(name, "text"), Column(name, "drawn"), Column(name, "text"), Column(name))
    return msgspec.structs.replace(
        report,
        verdict=verdict,
        script=(f"/work/{name}.py", name),
        notes=(name,),
        findings=findings,
        tables=(Table(title=name, columns=columns, rows=(row,), notes=(name,)),),
    )


def of_profile(**changed: object) -> Report:
    """A profile's report; with `changed` fields, and tables of these."""
    report = msgspec.structs.replace(report_run([build_profile(training(steps=4).timeline())]), **changed)
    return msgspec.structs.replace(report, tables=tables(report, report.profile))
