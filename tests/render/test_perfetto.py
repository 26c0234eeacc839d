"""A trace written again with what was found in it: its own events untouched, the tracks on its clock."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from render.reports import names
from trace_builder import Trace, training

from gapless.analyze.profile.building import build_profile, profile_file
from gapless.analyze.profile.profile_report import report_run
from gapless.commands import main
from gapless.errors import UnreadableInput, UsageError
from gapless.model import Report, Verdict
from gapless.render import Style
from gapless.render._perfetto import MAX_BOXES, PROCESS, events
from gapless.trace import splice as splicing
from gapless.trace.splice import splice

STYLE = Style(folder="/work")
DIALECTS = ("new", "middle", "old")


def document(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def marked(path: Path, target: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The events of Gapless and the others, after `path` was written again as `target`."""
    report = report_run([profile_file(str(path), max_boxes=MAX_BOXES)])
    splice(str(path), str(target), lambda base: events(report, STYLE, base))
    spliced = document(target)["traceEvents"]
    ours = [event for event in spliced if event.get("pid") == PROCESS]
    return ours, [event for event in spliced if event.get("pid") != PROCESS]


def trace(dialect: str) -> Trace:
    return training(steps=4, dialect=dialect)


@pytest.fixture(params=DIALECTS)
def original(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(trace(request.param).text()))
    return path


def test_the_trace_itself_is_untouched(original, tmp_path):
    _, trace_events = marked(original, tmp_path / "seen.json.gz")
    before, after = document(original), document(tmp_path / "seen.json.gz")
    assert trace_events == before.pop("traceEvents")
    after.pop("traceEvents")
    assert before == after


def test_tracks_are_on_the_clock_of_the_file(original, tmp_path):
    ours, trace_events = marked(original, tmp_path / "seen.json")
    # Fractions of a microsecond that lie decades from the clock's zero are no floats: half of one is allowed.
    spans = {(event["ts"], event["dur"]) for event in trace_events if event.get("ph") == "X"}
    starts = {event["ts"]: event for event in trace_events if event.get("ph") == "X"}
    waits = [event for event in ours if event["ph"] == "X" and event["tid"] >= 10]
    steps = [event for event in ours if event["ph"] == "X" and event["tid"] == 1]
    assert len(steps) == 4
    assert waits
    for drawn in (*waits, *steps):
        near = min(starts, key=lambda ts: abs(ts - drawn["ts"]))
        assert abs(near - drawn["ts"]) <= 0.5
        assert any(abs(ts - drawn["ts"]) <= 0.5 and abs(dur - drawn["dur"]) <= 1 for ts, dur in spans)


def test_slices_of_a_track_do_not_overlap(original, tmp_path):
    ours, _ = marked(original, tmp_path / "seen.json")
    for track in {event["tid"] for event in ours}:
        slices = [
            (event["ts"], event["dur"]) for event in ours if event["ph"] == "X" and event["tid"] == track
        ]
        assert slices == sorted(slices)
        for (start, length), (after, _) in pairwise(slices):
            assert start + length <= after + 0.5


def test_the_parts_of_idleness_add_up(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(trace("new").text())
    ours, _ = marked(path, tmp_path / "seen.json")
    idle = sum(event["dur"] for event in ours if event["ph"] == "X" and event["tid"] == 2)
    assert idle == pytest.approx(build_profile(trace("new").timeline()).idle / 1000, rel=1e-3)


def test_waits_bear_their_findings(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(trace("new").text())
    ours, _ = marked(path, tmp_path / "seen.json")
    report = report_run([profile_file(str(path))])
    marks = [event["name"] for event in ours if event["ph"] == "i"]
    assert len(marks) == len(report.findings)
    waits = [event for event in ours if event["ph"] == "X" and event["tid"] >= 10]
    assert {wait["name"] for wait in waits} <= set(marks)
    assert all(wait["args"]["instead"] for wait in waits)
    named = {event["args"]["name"] for event in ours if event["name"] == "thread_name"}
    assert {"training steps", "GPU idle, and why", "findings (where they cost most)"} <= named


def test_steps_of_a_profile_without_training_are_steps(tmp_path):
    path, inference = tmp_path / "trace.json", Trace()
    for number in range(4):
        inference.step(number, 1000 * number, 900)
        inference.launch("gemm", 1000 * number + 10, kernel=(1000 * number + 100, 500))
    path.write_bytes(inference.text())
    ours, _ = marked(path, tmp_path / "seen.json")
    tracks = {event["args"]["name"] for event in ours if event["name"] == "thread_name"}
    assert "steps" in tracks
    assert "training steps" not in tracks


@pytest.mark.parametrize("piece", [7, 300, 1 << 20])
@pytest.mark.parametrize("part", [0.7, 0.8, 0.801, 0.9, 1])
def test_pieces_of_any_size_and_files_that_end_anywhere(tmp_path, monkeypatch, piece, part):
    monkeypatch.setattr(splicing, "CHUNK", piece)
    monkeypatch.setattr(splicing, "_BUFFER_BYTES", piece)
    whole = trace("new").text()
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: int(len(whole) * part)])
    ours, trace_events = marked(path, tmp_path / "seen.json")
    assert ours
    everything = json.loads(whole)["traceEvents"]
    assert trace_events == everything[: len(trace_events)]
    assert len(trace_events) > len(everything) * (part - 0.2)
    assert part < 1 or trace_events == everything


def test_a_list_of_events_alone(tmp_path):
    path, target = tmp_path / "list.json", tmp_path / "seen.json"
    path.write_bytes(b"\n " + json.dumps(json.loads(trace("middle").text())["traceEvents"]).encode())
    report = report_run([profile_file(str(path), max_boxes=MAX_BOXES)])
    splice(str(path), str(target), lambda base: events(report, STYLE, base))
    assert isinstance(json.loads(target.read_bytes()), list)


def test_what_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(trace("new").text())
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is the trace itself"):
        splice(str(path), str(path), lambda base: ())
    with pytest.raises(UsageError, match="standard input can be read only once"):
        splice("-", str(tmp_path / "other.json"), lambda base: ())
    with pytest.raises(UnreadableInput, match="cannot write"):
        splice(str(path), str(tmp_path / "absent" / "seen.json"), lambda base: ())
    with pytest.raises(UnreadableInput):
        splice(str(tmp_path / "none.json"), str(tmp_path / "seen.json"), lambda base: ())
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    assert path.read_bytes() == before


def test_a_report_of_a_check_has_no_tracks():
    assert list(events(Report(verdict=Verdict(sentence="No waits")), STYLE)) == []


@settings(deadline=None, max_examples=20)
@given(names)
def test_hostile_names(name):
    report = report_run([build_profile(trace("new").timeline(), max_boxes=MAX_BOXES)])
    findings = [
        msgspec.structs.replace(finding, line=None, place=name, remedy=name) for finding in report.findings
    ]
    report = msgspec.structs.replace(report, findings=tuple(findings))
    for event in events(report, STYLE):
        assert json.loads(event)["pid"] == PROCESS


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("trace.json.gz").write_bytes(gzip.compress(trace("new").text()))
    assert main(["trace", "--perfetto", "seen.json.gz", "trace.json.gz"]) == 0
    assert "Your GPU idles" in capsys.readouterr().out
    assert any(event.get("pid") == PROCESS for event in document(Path("seen.json.gz"))["traceEvents"])
    Path("other.json.gz").write_bytes(gzip.compress(trace("new").text()))
    assert main(["trace", "--perfetto", "seen2.json", "trace.json.gz", "other.json.gz"]) == 2
    assert "--perfetto writes one trace; 2 were given" in capsys.readouterr().err
