"""What a report of memory says first, and which settings have a row."""

from __future__ import annotations

from building import line

from gapless.analyze import report
from gapless.analyze.tables.memory import tables
from gapless.model import Finding, Frequency, Verdict
from gapless.model.memory_report import MemoryReport, Outcome, Trial


def test_a_setting_that_was_asked_for_always_has_its_row():
    trials = [
        Trial(settings=f"max_split_size_mb:{n}", outcome=Outcome(peak_reserved=n)) for n in range(20, 40)
    ]
    asked = Trial(settings="expandable_segments:True", outcome=Outcome(peak_reserved=99), asked=True)
    made = MemoryReport(sentence="", trials=(*trials, asked), searched=True)
    (settings,) = (one for one in tables(made) if one.title == "Settings")
    shown = [row.cells[0] for row in settings.rows[: settings.shown]]
    assert shown == ["as in the run", *(one.settings for one in trials[:8]), asked.settings]
    assert len(settings.rows) == 1 + 21


def test_memory_that_grows_is_told_and_mended_first():
    grows = Finding(
        code="GAP405",
        name="memory-grows",
        line=line(12),
        frequency=Frequency(when="every-step", waits=0.0),
        remedy="keep `tensor.detach()`",
        change="keep `tensor.detach()`, not tensors with their graph",
        evidence=("12 MiB in 3 tensors remain from each of 9 steps",),
    )
    fine = Verdict(sentence="At most 1 GiB reserved", level="fine")
    found = report(MemoryReport(sentence="", answer=fine, findings=(grows,))).verdict
    assert (found.level, found.why) == (
        "act",
        ("Memory grows: 12 MiB in 3 tensors remain from each of 9 steps",),
    )
    assert [(one.what, one.line) for one in found.do_first] == [(grows.change, grows.line)]
    assert report(MemoryReport(sentence="", answer=fine)).verdict == fine
