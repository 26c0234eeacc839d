"""`report`: whatever was saved or measured, to the one document that every renderer receives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

from gapless.model import Profile, Report, Session
from gapless.model.comparison import Comparison
from gapless.model.loading import Diagnosis
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import MemoryReport
from gapless.model.proof import Proof

# Each kind's module is imported when it is asked for: of a session nobody pays for the replay of profiles.


@singledispatch
def report(seen: Any, *how: Any, **more: Any) -> Report:
    """The whole document for what was captured: verdict, findings in order, tables and notes.

    `seen` is a session, the profiles of one run (one for each rank), a run of the allocator or what replaying
    it said, the diagnosis of a loader, a comparison or a proof. Of sessions and memory, `drawn` also lays the
    memory out for a page; of sessions, ``priced=False`` leaves out estimates and
    `by_line` keeps apart what one change mends; of profiles, `notes` are added
    and `read` gives the text of the user's source files.

    >>> report(gapless.load("run.gapless.json")).verdict.sentence
    '7 syncs in every step: together up to 7.7 % of each step'

    Raises:
        TypeError: there is no report of such a thing.
    """
    raise TypeError(f"no report of a {type(seen).__name__}: give a session, profiles, a memory run …")


@report.register
def _(seen: Session, *how: Any, **more: Any) -> Report:
    from gapless.analyze import session

    return session.report(seen, *how, **more)


@report.register(list)
@report.register(tuple)
def _(seen: Sequence[Profile], *how: Any, **more: Any) -> Report:
    from gapless.analyze.profile import report as profiles

    return profiles.report(seen, *how, **more)


@report.register
def _(seen: MemoryRun, drawn: bool = False) -> Report:
    from gapless.analyze import memory

    return memory.report(memory.replayed(seen, drawn))


@report.register
def _(seen: MemoryReport) -> Report:
    from gapless.analyze import memory

    return memory.report(seen)


@report.register
def _(seen: Diagnosis) -> Report:
    from gapless.analyze import loaders

    return loaders.report(seen)


@report.register
def _(seen: Comparison) -> Report:
    from gapless.analyze.compare import report as comparison

    return comparison.of_runs(seen)


@report.register
def _(seen: Proof) -> Report:
    from gapless.analyze.compare import report as comparison

    return comparison.of_callables(seen)
