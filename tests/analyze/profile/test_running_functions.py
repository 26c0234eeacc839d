"""Functions that ran already when the profiler started: the training loop, always."""

from __future__ import annotations

import pytest
from trace_builder import Trace

from gapless.analyze.profile.lines import PlaceIndex
from gapless.analyze.profile.source_lines import with_source_lines
from gapless.model import Cost, Profile, Site, SourceLine
from gapless.model.profile import Recording

SOURCE = """import torch

loader = make()
first = next(loader).item()


def train(steps):
    for step in range(steps):
        loss = forward(step)
        total = loss.item()
        optimizer.step()


def forward(step):
    return step.tolist(), step.tolist()


train(3)
"""


def resolved_line(line: int, function: str, call: str) -> SourceLine:
    """The line that is told of a frame at `line` of `function`, which called `call`."""
    site = Site(
        operator="aten::item",
        mechanism="read",
        call=call,
        stack=(SourceLine("train.py", line, function),),
    )
    profile = Profile(recording=Recording(stacks="frames"), costs=(Cost(cause="wait", site=site, idle=1),))
    source_lines = with_source_lines(profile, lambda file: SOURCE if file == "train.py" else "")
    return source_lines.costs[0].site.stack[0]


@pytest.mark.parametrize("recorded", [7, 8, 11])
def test_the_line_of_a_call_in_the_loop(recorded):
    """The frame has the line where the function begins, or one that ran when recording started."""
    line = resolved_line(recorded, "train", "Tensor.item")
    assert (line.line, line.code) == (10, "total = loss.item()")


def test_where_the_line_is_not_known_the_function_is():
    assert resolved_line(11, "train", "Tensor.backward").line == 7
    assert resolved_line(15, "forward", "Tensor.tolist").line == 15  # both calls are on one line
    assert resolved_line(14, "forward", "Tensor.cpu").line == 14


def test_a_loop_outside_of_functions():
    line = resolved_line(17, "<module>", "Tensor.item")
    assert (line.line, line.code) == (4, "first = next(loader).item()")
    assert resolved_line(17, "<module>", "Tensor.cpu").line == 1


@pytest.mark.parametrize(
    ("line", "function"), [(3, "train"), (99, "<module>"), (8, "forward"), (40, "train")]
)
def test_source_that_is_another_tells_nothing(line, function):
    finding = resolved_line(line, function, "Tensor.item")
    assert (finding.line, finding.code) == (line, "")


def test_what_marked_the_step_is_not_around_what_runs_in_it():
    """``profiler.step()`` begins the step's annotation and ends right after it; the annotation lasts."""
    trace = Trace()
    trace.frame("train.py(11): train", 0, 1000)
    trace.frame("torch/optim/optimizer.py(500): wrapper", 10, 40)
    trace.frame("hooks.py(3): after_step", 20, 20)
    trace.step(1, 30, 600)
    trace.frame("train.py(14): forward", 100, 50)
    operator = trace.operator("aten::mm", 110, 20)
    trace.launch("mm", 112, 5, kernel=(120, 30), external=operator)
    loose = trace.operator("aten::add", 200, 20)
    trace.launch("add", 202, 5, kernel=(210, 30), external=loose)
    timeline = trace.timeline()
    names = [timeline.names[number] for number in timeline.host.name]
    places = PlaceIndex(timeline)
    inside = places.place(names.index("aten::mm"))
    assert [frame.function for frame in inside.stack] == ["forward", "train"]
    assert [frame.function for frame in places.place(names.index("aten::add")).stack] == ["train"]
