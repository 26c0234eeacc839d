"""Times of one profile and lines of another: moved frames, against how they were made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_checks import assert_sound
from trace_builder import Trace, training

from gapless.analyze.profile.join import MIN_COVERAGE, join_profiles, profile_passes
from gapless.analyze.profile.lines import PlaceIndex
from gapless.errors import UnreadableInput
from gapless.trace.timeline import HostKind, Timeline

LOOP = "train.py(10): train"
LOSS = "train.py(3): loss"
ITEM = "<built-in method item of Tensor object at 0x7f00>"


def recorded(steps: list[list[str]], pace: float = 1.0, frames: bool = False, thread: int = 4000) -> Trace:
    """Steps of operators, each twice as long and apart as the one before, `pace` times slower with frames.

    Of ``loss::name`` the operator is called by `LOSS`, of ``name`` by the loop itself; the last of the step
    is what a value is read by.
    """
    trace = Trace(with_stack=frames)
    now = 10.0
    begun = now
    for number, names in enumerate(steps):
        begin = now
        for position, name in enumerate(names):
            length = 8.0 * (1 + position % 3) * pace
            operator = name.rpartition("loss::")[2]
            if frames and name.startswith("loss::"):
                trace.frame(LOSS, now + 1 * pace, length + 4 * pace)
            if frames and "item" in name:
                trace.frame(ITEM, now + 1.5 * pace, length + 2 * pace)
            op = trace.operator(f"aten::{operator}", now + 2 * pace, length, thread=thread)
            trace.launch("kernel", now + 3 * pace, 2, kernel=(now + 6 * pace, 20), external=op, thread=thread)
            now += length + 6 * pace
        trace.step(number + 1, begin, now - begin - 0.5)
    if frames:
        trace.frame(LOOP, begun, now - begun)
    return trace


def lines(timeline: Timeline) -> list[list[tuple[str, tuple[str, ...], str]]]:
    """For each step: operators, the functions around them, the built-in."""
    host, places = timeline.host, PlaceIndex(timeline)
    steps = sorted(
        (int(host.start[row]), int(host.end[row]))
        for row in range(len(host))
        if timeline.names[host.name[row]].startswith("ProfilerStep#")
    )
    frames = []
    for begin, end in steps:
        rows = np.flatnonzero((host.kind == HostKind.OPERATOR) & (host.start >= begin) & (host.start < end))
        step = [(timeline.names[host.name[row]], places.place(int(row))) for row in rows]
        frames.append([(name, tuple(f.function for f in place.stack), place.call) for name, place in step])
    return frames


STEP = ["randn", "loss::mul", "loss::sum", "loss::item", "add_"]


def test_frames_lie_around_the_operators_they_called():
    light, heavy = recorded([STEP] * 3).timeline(), recorded([STEP] * 3, pace=3.0, frames=True).timeline()
    joined, coverage = join_profiles(light, heavy)
    assert coverage == 1
    assert_sound(joined)
    assert lines(joined) == lines(heavy)
    assert lines(joined)[1][3] == ("aten::item", ("loss", "train"), "Tensor.item")
    assert lines(light)[1][3] == ("aten::item", (), "")


def test_times_stay_those_of_the_profile_without_stacks():
    light, heavy = recorded([STEP] * 3).timeline(), recorded([STEP] * 3, pace=3.0, frames=True).timeline()
    timeline = join_profiles(light, heavy).timeline
    kept = timeline.host.take(timeline.host.kind != HostKind.FRAME)
    for name in ("start", "end", "kind", "correlation"):
        assert np.array_equal(getattr(kept, name), getattr(light.host, name)), name
    assert np.array_equal(timeline.work.start, light.work.start)
    assert timeline.span == light.span
    assert not timeline.facts.with_stack


def test_a_step_takes_the_frames_of_one_that_did_the_same():
    logging = [*STEP, "item"]
    light = recorded([logging, STEP, STEP]).timeline()
    heavy = recorded([STEP, STEP, logging], pace=2.0, frames=True).timeline()
    joined, coverage = join_profiles(light, heavy)
    assert coverage == 1
    assert lines(joined)[0] == lines(heavy)[2]
    assert lines(joined)[0][-1] == ("aten::item", ("train",), "Tensor.item")


def test_a_step_unlike_all_others_takes_what_is_alike():
    more = ["randn", "loss::mul", "extra", "loss::sum", "loss::item", "add_"]
    light = recorded([more]).timeline()
    heavy = recorded([STEP], pace=2.0, frames=True).timeline()
    joined, coverage = join_profiles(light, heavy)
    assert coverage == pytest.approx(5 / 6)
    stacks = {name: stack for name, stack, _ in lines(joined)[0]}
    assert stacks["aten::item"] == ("loss", "train")
    assert stacks["aten::mul"] == ("loss", "train")


def test_threads_without_python_are_left_as_they_are():
    light, heavy = training(), training()
    light.events = [event for event in light.events if event.get("cat") != "python_function"]
    bare, framed = light.timeline(), heavy.timeline()
    joined, coverage = join_profiles(bare, framed)
    assert coverage == 1
    assert_sound(joined)
    assert len(joined.links.forward) == len(bare.links.forward) > 0
    for side in ("forward", "backward"):
        moved, before = getattr(joined.links, side), getattr(bare.links, side)
        assert [joined.names[joined.host.name[row]] for row in moved] == [
            bare.names[bare.host.name[row]] for row in before
        ]


def test_nothing_in_common():
    light = recorded([["mul", "add"]]).timeline()
    heavy = recorded([["loss::conv", "loss::relu"]], frames=True).timeline()
    assert join_profiles(light, heavy).coverage == 0
    without = replace(heavy, host=heavy.host.take(heavy.host.kind != HostKind.FRAME))
    assert join_profiles(light, without).coverage == 0


NAMES = st.sampled_from(["mul", "loss::mul", "loss::sum", "item", "loss::item", "add_"])
STEPS = st.lists(st.lists(NAMES, min_size=1, max_size=6), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(STEPS, STEPS, st.sampled_from([1.0, 1.5, 4.0]))
def test_whatever_was_recorded_the_result_is_sound(first, second, pace):
    light, heavy = recorded(first).timeline(), recorded(second, pace=pace, frames=True).timeline()
    estimate, coverage = join_profiles(light, heavy)
    assert 0 <= coverage <= 1
    assert_sound(estimate)
    low, high = light.span
    assert estimate.host.start.min() >= low
    assert estimate.host.end.max() <= high
    assert len(estimate.host.take(estimate.host.kind != HostKind.FRAME)) == len(light.host)


@settings(max_examples=30, deadline=None)
@given(STEPS, st.sampled_from([1.0, 2.5]))
def test_the_same_work_gets_the_same_lines(steps, pace):
    light, heavy = recorded(steps).timeline(), recorded(steps, pace=pace, frames=True).timeline()
    joined, coverage = join_profiles(light, heavy)
    assert coverage == 1
    assert lines(joined) == lines(heavy)


# Files ------------------------------------------------------------------------------------------------------


def written(folder: Path, name: str, trace: Trace) -> str:
    return str(trace.write(folder / f"{name}.json.gz"))


def notes(times: str, stacks: str) -> tuple[str, list[str]]:
    report = profile_passes(times, stacks)
    return report.path, [note for note in report.notes if "tack" in note]


def test_the_profile_of_both(tmp_path):
    light = written(tmp_path, "times", recorded([STEP] * 4))
    heavy = written(tmp_path, "stacks", recorded([STEP] * 4, pace=3.0, frames=True))
    path, said = notes(light, heavy)
    assert path == light
    assert said == [
        "Times come from steps recorded without Python stacks, lines from steps recorded with them (which "
        "took 3 times as long); all of the operators were found in both"
    ]
    profile = profile_passes(light, heavy, priced=True)
    assert profile.recording.stacks == "frames"
    assert not profile.recording.with_stack
    assert profile.steps.count == 4
    assert profile.prices is not None


def test_work_that_differs_is_reported_with_its_stacks_alone(tmp_path):
    light = written(tmp_path, "times", recorded([["mul", "add", "sub"]] * 2))
    heavy = written(tmp_path, "stacks", recorded([STEP] * 2, pace=2.0, frames=True))
    path, said = notes(light, heavy)
    assert MIN_COVERAGE > 0
    assert path == heavy
    assert said[0].startswith("The steps with Python stacks did different work from those without")
    assert "times as long" in said[0]


def test_one_file_alone(tmp_path):
    light = written(tmp_path, "times", recorded([STEP] * 2))
    heavy = written(tmp_path, "stacks", recorded([STEP] * 2, frames=True))
    assert notes(light, "")[1] == ["Lines are unknown: no steps were recorded with Python stacks"]
    assert notes("", heavy) == (
        heavy,
        ["All times include profiler overhead: only steps with Python stacks were recorded"],
    )


def test_no_work_of_a_device(tmp_path):
    trace = Trace()
    trace.step(1, 0, 10)
    with pytest.raises(UnreadableInput, match="has no GPU work"):
        profile_passes(written(tmp_path, "times", trace), "")
