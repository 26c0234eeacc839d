"""The same capture gives the same findings, whichever way it is read."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_runs import diagnosed, trained
from sessions import STOPPED, Simulation
from trace_builder import training

import gapless
from gapless.analyze import report
from gapless.analyze.profile.building import build_profile
from gapless.commands.show import reports
from gapless.errors import UnreadableInput
from gapless.model import Report, Session, SourceLine, memory
from gapless.model import loading as saved_loading
from gapless.model import profile as saved_profile
from gapless.model.estimate import Range
from gapless.model.loader_use import LoaderUse
from gapless.render import Style, formats, renderer

MS = 1_000_000
FED = LoaderUse(
    made=SourceLine("/work/train.py", 12, "main", "loader = DataLoader(data)"),
    dataset="Images",
    per_step=1.0,
    step=Range(*[40 * MS] * 3),
    late=Range(*[60 * MS] * 3),
    diagnosis=diagnosed(),
)
WAITS = st.lists(st.tuples(st.sampled_from([5, 20, 50, 97]), st.integers(1, 9)), max_size=4)


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """A few steps, with memory or without, with a loader that starves them or without."""
    run = Simulation()
    for number, waits in enumerate(draw(st.lists(WAITS, min_size=1, max_size=6))):
        for line, times in waits:
            run.wait(line, times)
        run.step(95, "SGD.step#0")
        run.phase = "eval" if number == 2 else "train"
    return run.session(
        ending=STOPPED,
        memory=(trained(),) if draw(st.booleans()) else (),
        loaders=(FED,) if draw(st.booleans()) else (),
    )


def same(report: Report, other: Report) -> bool:
    """Whether two reports say the same of what they found."""
    fields = ("verdict", "findings", "notes", "tables")
    return all(getattr(report, field) == getattr(other, field) for field in fields)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(session=sessions())
def test_a_session(tmp_path: Path, session: Session) -> None:
    path = tmp_path / "run.gapless.json"
    gapless.save(session, path)
    direct = gapless.report(session)
    (shown,) = reports(str(path))
    (drawn,) = reports(str(path), "html")  # what a page is made of
    for other in (report(gapless.load(path)), shown, drawn):
        assert same(direct, other)
    parsed = json.loads(renderer("json")(shown, Style()))
    assert [finding["code"] for finding in parsed["findings"]] == [
        finding.code for finding in direct.findings
    ]
    codes = {finding.code[:4] for finding in direct.findings}
    assert ("GAP4" in codes) == bool(session.memory)
    assert ("GAP3" in codes) == bool(session.loaders)


@pytest.mark.parametrize("form", formats())
def test_every_format_holds_all_that_was_found(form):
    """A session with waits, a starved input and memory: nothing is left to one command or format alone."""
    run = Simulation()
    for _ in range(6):
        run.wait(20)
        run.step(95)
    document = gapless.report(run.session(memory=(trained(),), loaders=(FED,)))
    assert {finding.code for finding in document.findings} >= {"GAP101", "GAP301", "GAP402"}
    text = renderer(form)(document, Style(unfold=True, width=100))
    for finding in document.findings:
        assert finding.code in text


def test_what_loses_most_comes_first_whatever_it_is_lost_to():
    run = Simulation()
    run.wait(5, times=99)
    for _ in range(6):
        run.wait(20)
        run.step(95)
    document = gapless.report(run.session(loaders=(FED,)))
    assert [finding.code for finding in document.findings][:2] == ["GAP301", "GAP101"]
    assert document.findings[-1].frequency.when == "set-up"
    assert "waiting for data" in document.verdict.sentence
    assert (
        document.verdict.do_first[0].what.startswith("num_workers")
        or "num_workers" in document.verdict.do_first[0].what
    )


def test_profiles(tmp_path):
    profiles = [build_profile(training(steps=4).timeline())]
    path = tmp_path / "profile.json"
    saved_profile.save(profiles, path)
    (shown,) = reports(str(path))
    assert same(report(profiles), msgspec.structs.replace(shown, path=""))


def test_memory_and_loaders(tmp_path):
    run, diagnosis = trained(), diagnosed()
    memory.save([run], tmp_path / "memory.json")
    saved_loading.save(diagnosis, tmp_path / "loader.json")
    (of_memory,) = reports(str(tmp_path / "memory.json"))
    (of_loader,) = reports(str(tmp_path / "loader.json"))
    assert same(report(run), of_memory)
    assert same(report(diagnosis), of_loader)


def test_there_is_no_report_of_anything_else():
    with pytest.raises(TypeError, match="no report of a int"):
        report(3)


def test_what_another_command_reports_is_said_to_be_its(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}')
    snapshot = tmp_path / "snapshot.pickle"
    snapshot.write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    for path, command in ((trace, "trace"), (snapshot, "memory")):
        with pytest.raises(UnreadableInput, match=f"gapless {command} {re.escape(str(path))}"):
            reports(str(path))
