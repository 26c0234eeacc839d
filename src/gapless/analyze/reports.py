"""Build the report that every renderer receives from whatever was saved or measured."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gapless.model import Report, Session
from gapless.model.comparison import Comparison
from gapless.model.fix import FixProof
from gapless.model.loading import Diagnosis
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import MemoryReport
from gapless.model.proof import Proof

_REPORTERS: dict[type, tuple[str, str]] = {
    Session: ("session_report", "report"),
    list: ("profile.profile_report", "report_run"),
    tuple: ("profile.profile_report", "report_run"),
    MemoryRun: ("memory_report", "of_run"),
    MemoryReport: ("memory_report", "report"),
    Diagnosis: ("loaders", "report"),
    Comparison: ("compare.comparison_report", "report_comparison"),
    FixProof: ("fix_proof_report", "report_fix_proof"),
    Proof: ("compare.comparison_report", "report_proof"),
}
"""Module and function for each kind of capture; imported on use, so a session does not load the replay."""


def report(capture: Any, *how: Any, **more: Any) -> Report:
    """Return the report on `capture`: verdict, findings in order, tables and notes.

    `capture` is a session, the profiles of one run (one per rank), an allocator run or its memory report, the
    diagnosis of a loader, a comparison or a proof (of callables, or of an edit). For sessions and memory,
    ``drawn=True`` also lays the memory out for a page; for sessions, ``priced=False`` leaves out estimates
    and ``by_line=True`` keeps apart the lines that one change mends; for profiles, `notes` are added and
    `read` returns the text.

    >>> from gapless.model import Session
    >>> report(Session()).kind
    'session'

    Raises:
        TypeError: `capture` is none of these.
    """
    for kind, (module, function) in _REPORTERS.items():
        if isinstance(capture, kind):
            document: Report = getattr(import_module(f"gapless.analyze.{module}"), function)(
                capture, *how, **more
            )
            return document
    raise TypeError(f"no report of a {type(capture).__name__}: give a session, profiles, a memory run …")
