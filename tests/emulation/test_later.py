"""Long runs: steps are kept one by one up to a bound, and summed after it."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gapless.analyze import report
from gapless.emulation.core import forward_calls
from gapless.emulation.emulator import Emulator
from gapless.emulation.memory import requests
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.recording import strands
from gapless.emulation.recording.recorder import WaitRecorder
from gapless.emulation.support import later, stacks
from gapless.model import Ending, Environment, Session
from gapless.model.session import decode, encode

FINISHED = {"ending": Ending(), "environment": Environment(device="GPU", emulated=True)}


CAPTURE = stacks.capture


def record_steps(steps, most_ticks=later.MAX_TICKS, most_events=later.MAX_EVENTS):
    """Record `steps`, each a list of (line of `_wait`, times), with the bounds `most_…`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(later, "MAX_TICKS", most_ticks)
        patch.setattr(later, "MAX_EVENTS", most_events)
        # Not those of the test runner, whose sources take long to read.
        patch.setattr(stacks, "capture", lambda depth=1: CAPTURE(depth + 1)[:4])
        recorder = WaitRecorder()
        for step in steps:
            for place, times in step:
                for _ in range(times):
                    _PLACES[place](recorder)
            recorder.mark("backward")
            recorder.mark("optimizer", "SGD.step#0")
    return recorder


_PLACES = [
    lambda recorder: recorder.wait("aten::_local_scalar_dense", "read", call="Tensor.item", depth=0),
    lambda recorder: recorder.wait("aten::nonzero", "size", call="Tensor.nonzero", depth=0),
    lambda recorder: recorder.wait("aten::_to_copy", "d2h", call="Tensor.cpu", nbytes=8, depth=0),
]


def session(recorder):
    return Session(
        sites=recorder.sites(),
        events=recorder.events(),
        marks=recorder.marks(),
        later=recorder.later(),
        **FINISHED,
    )


def rate(finding):
    """What `finding` says, but for how many waits there were in all."""
    return finding.code, finding.line, replace(finding.frequency, total=0), finding.remedy


WAITS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=4)


@settings(max_examples=30)
@given(st.lists(WAITS, min_size=1, max_size=12), st.integers(1, 12))
def test_no_wait_and_no_step_is_lost_in_sums(steps, most):
    whole, bounded = record_steps(steps), record_steps(steps, most)
    assert whole.later() is None
    kept = [event for event in bounded.events() if event.tick < most]
    assert [(e.site, e.tick, e.waits, e.bytes) for e in whole.events() if e.tick < most] == [
        (e.site, e.tick, e.waits, e.bytes) for e in kept
    ]
    assert len(kept) == len(bounded.events())
    assert session(bounded).waits == session(whole).waits
    summed = bounded.later()
    assert (summed.ticks if summed is not None else 0) == max(len(steps) - most, 0)


@settings(max_examples=30)
@given(WAITS, st.integers(6, 12), st.integers(1, 60))
def test_steps_that_repeat_have_the_same_report_with_most_of_them_in_sums(step, most, more):
    whole, bounded = (report(session(record_steps([step] * (most + more), bound))) for bound in (10**6, most))
    assert list(map(rate, bounded.findings)) == list(map(rate, whole.findings))
    assert bounded.steps.waits_per_step == whole.steps.waits_per_step
    assert bounded.planned == whole.planned
    (note,) = (note for note in bounded.notes if note not in whole.notes)
    assert note.startswith(f"the first {most} steps were looked at one by one; of the {more} after them only")
    assert "other than before" not in note


def test_a_record_does_not_grow_with_a_long_run():
    def size(count):
        recorder = record_steps([[(0, 1)]] * count, 50)
        return len(encode(session(recorder))), len(recorder.marks()), len(recorder.events())

    assert size(100)[1:] == size(2000)[1:] == (100, 50)
    assert abs(size(100)[0] - size(2000)[0]) < 200


def test_many_events_are_bounded_too():
    recorder = record_steps([[(0, 1), (1, 1), (2, 1)]] * 100, most_events=30)
    assert len(recorder.events()) == 30
    assert recorder.later().waits == 270


def test_a_line_that_waits_only_later_is_found_and_named():
    steps = [[(0, 1)]] * 10 + [[(0, 1), (1, 2)]] * 10
    whole = report(session(record_steps(steps, 10)))
    assert {finding.code for finding in whole.findings} == {
        finding.code for finding in report(session(record_steps(steps))).findings
    }
    (note,) = (note for note in whole.notes if "sums" in note)
    assert "30 syncs, 3 per step (1 before); other than before: test_later.py:" in note
    assert note.endswith("(2 per step, 0 before)")


def test_what_was_summed_is_saved_and_checked():
    saved = session(record_steps([[(0, 1)]] * 10, 4))
    assert decode(encode(saved)) == saved
    damaged = encode(saved).replace(b'"events":[{"site":0,"tick":4', b'"events":[{"site":9,"tick":4')
    assert damaged != encode(saved)
    with pytest.raises(Exception, match="site that does not exist"):
        decode(damaged)


def test_estimates_are_those_of_the_steps_that_are_kept(monkeypatch):
    monkeypatch.setattr(later, "MAX_TICKS", 6)
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        weight = torch.nn.Linear(4, 1, device="cuda")
        optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            loss = weight(torch.ones(2, 4, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            loss.item()
    recording = emulator.session()
    assert max(segment.tick for segment in recording.programme.segments) == 5
    assert report(recording).planned.steps == 20
    assert recording.later.ticks == 14


def train_steps(steps, most):
    """Return the memory run of `steps`, of which no more than `most` ticks are kept."""
    with pytest.MonkeyPatch.context() as patch, Emulator(EmulatorOptions("t4", memory=True)) as emulator:
        patch.setattr(requests, "MAX_TICKS", most)
        weight = torch.nn.Linear(4, 1, device="cuda")
        optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
        for size in steps:
            optimizer.zero_grad()
            weight(torch.ones(size, 4, device="cuda")).sum().backward()
            optimizer.step()
        return emulator.session().memory[0]


@pytest.mark.skipif(not requests.reports_storage_ends(), reason="this torch does not tell when storages end")
@pytest.mark.parametrize(("size", "words"), [(2, "later no more was allocated"), (4096, "more than the")])
def test_memory_of_a_long_run_is_that_of_its_first_steps(size, words):
    short, long = train_steps([2] * 6, 6), train_steps([2] * 6 + [size] * 30, 6)
    assert (long.action, long.size) == (short.action, short.size)
    (note,) = [note for note in long.notes if "one by one" in note]
    assert words in note


def test_many_tasks_count_as_those_that_start_them(monkeypatch):
    monkeypatch.setattr(strands, "MAX_STRANDS", 3)
    numbering, numbers = strands.Strands(), []

    def nested(left):
        numbering.started_by(numbers[-1] if numbers else 0)
        numbers.append(numbering.here().number)
        if left:
            thread = threading.Thread(target=nested, args=(left - 1,))
            thread.start()
            thread.join()

    assert numbering.notes() == ()
    for _ in range(2):
        thread = threading.Thread(target=nested, args=(2,))
        thread.start()
        thread.join()
    assert numbers == [1, 2, 2, 2, 2, 2]
    assert len(numbering.parents) == 3
    assert "3 threads and asyncio tasks" in numbering.notes()[0]


def test_old_calls_of_forward_are_remembered_as_before(monkeypatch):
    def calls():
        numbers = iter(range(1, 10**6))
        monkeypatch.setattr(forward_calls, "sequence_number", lambda: next(numbers))
        record = forward_calls.ForwardCalls(None, ())
        for number in range(60):
            record.add(number, stacks.gather(), f"layer{number % 3}")
        return [record.call_of(number) for number in range(60)]

    many = calls()
    monkeypatch.setattr(forward_calls, "_MAX_TRACEBACKS", 8)
    few = calls()
    assert [module for _, module in few] == [f"layer{number % 3}" for number in range(60)]
    assert {stacks.resolve(stack)[:1] for stack, _ in few} == {stacks.resolve(stack)[:1] for stack, _ in many}
    monkeypatch.setattr(forward_calls, "_MAX_CALLS", 20)
    assert [module for _, module in calls()[-10:]] == [module for _, module in few[-10:]]
