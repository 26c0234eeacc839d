"""One document of each kind, with `name` wherever a name can be."""

from __future__ import annotations

import msgspec
from compared_profiles import FAST_FINDINGS, SLOW_FINDINGS, fast, slow
from memory_runs import diagnosed, remembered, trained
from render.reports import hostile, of_profile
from sessions import example

from gapless.analyze import report
from gapless.analyze.compare import ComparisonSide, compare_profiles, compare_reports
from gapless.commands._memory_compare import compare_memory
from gapless.memory.compare import compare_runs
from gapless.model import Report
from gapless.model.fix import FixProof, LineWaits
from gapless.model.proof import CallCost, CaseResult, Difference, Proof
from gapless.model.source import SourceLine

KINDS = ("session", "profile", "memory", "loader", "profiles", "sessions", "memories", "proof", "edit")


def document(kind: str, name: str = "train") -> Report:
    """The document of that kind."""
    return _MAKERS[kind](name)


def _profiles(name: str) -> Report:
    before = ComparisonSide(f"{name}.json", slow(), SLOW_FINDINGS)
    return report(compare_profiles(before, ComparisonSide("fast.json", fast(), FAST_FINDINGS)))


def _sessions(name: str) -> Report:
    before = example()
    steps = msgspec.structs.replace(before.steps, waits_per_step=2.2)
    kept = tuple(finding for finding in before.findings if finding.code != "GAP110")
    after = msgspec.structs.replace(hostile(name), steps=steps, findings=(*kept, *hostile(name).findings))
    return report(compare_reports((f"{name}.json", before), ("after.json", after)))


def _memories(name: str) -> Report:
    return report(compare_memory(compare_runs((name, trained(3, name)), ("after", trained(6, name)))))


def _proof(name: str) -> Report:
    difference = Difference(where=name, before=name, after=name, largest=0.5, at=(1, 2), share=0.5)
    cases = (
        CaseResult(name=name, outcome="differs", differences=(difference,) * 5),
        CaseResult(name=f"{name} again", outcome="both raise", why=name),
    )
    cost = CallCost(waits=2, first=3, operators=9, peak=7688, findings=hostile(name).findings)
    proof = Proof(
        verdict=f"Not the same: {name}",
        same=False,
        before=f"/work/{name}.py:f",
        after=name,
        cases=cases,
        gpu=name,
        costs=(cost, cost),
        again=f"gapless compare {name}",
        notes=(name,),
    )
    return report(proof)


def _edit(name: str) -> Report:
    line = SourceLine(f"{name}.py", 3, name, name)
    return report(
        FixProof(
            proved=False,
            outcome="refused",
            reason=f"line 1 of standard output is {name!r}",
            before=2.0,
            after=1.0,
            lines=(LineWaits(line=line, before=2.0, after=1.0, total_before=20, total_after=10),),
            races=(name,),
            not_run=(line,) * 7,
            notes=(name,),
        )
    )


_MAKERS = {
    "session": hostile,
    "profile": lambda name: of_profile(path=name, notes=(name,)),
    "memory": lambda name: report(remembered(trained(name=name, path=f"/work/{name}", gpu=name))),
    "loader": lambda name: report(diagnosed(name)),
    "profiles": _profiles,
    "sessions": _sessions,
    "memories": _memories,
    "proof": _proof,
    "edit": _edit,
}
