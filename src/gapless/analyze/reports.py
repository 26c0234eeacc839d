"""`report`: whatever was saved or measured, to the one document that every renderer receives."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gapless.model import Report, Session
from gapless.model.comparison import Comparison
from gapless.model.loading import Diagnosis
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import MemoryReport
from gapless.model.proof import Proof

_ROADS: dict[type, tuple[str, str]] = {
    Session: ("session_report", "report"),
    list: ("profile.profile_report", "report"),
    tuple: ("profile.profile_report", "report"),
    MemoryRun: ("memory_report", "of_run"),
    MemoryReport: ("memory_report", "report"),
    Diagnosis: ("loaders", "report"),
    Comparison: ("compare.comparison_report", "of_runs"),
    Proof: ("compare.comparison_report", "of_callables"),
}
"""For each kind the module, which is imported when it is asked for, and its function: of a session nobody
pays for the replay of profiles."""


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
    for kind, (module, function) in _ROADS.items():
        if isinstance(seen, kind):
            found: Report = getattr(import_module(f"gapless.analyze.{module}"), function)(seen, *how, **more)
            return found
    raise TypeError(f"no report of a {type(seen).__name__}: give a session, profiles, a memory run …")
