"""Which operator of forward one of backward was made from."""

from __future__ import annotations

import numpy as np
import pytest
from trace_builder import Trace

from gapless.trace.timeline import Timeline

ENGINE = "autograd::engine::evaluate_function: "


def pairs(timeline: Timeline) -> list[tuple[str, float, str, float]]:
    """Name and start in microseconds of both ends, in the order of backward."""
    host, linked = timeline.host, []
    for a, b in zip(timeline.links.forward.tolist(), timeline.links.backward.tolist(), strict=True):
        ends = [(timeline.names[host.name[row]], int(host.start[row]) / 1000) for row in (a, b)]
        linked.append((*ends[0], *ends[1]))
    return sorted(linked, key=lambda pair: pair[3])


def forward(trace: Trace, thread: int | None = None, sequence: int = 5) -> None:
    trace.operator("aten::zero_", 0, 2, sequence=sequence, thread=thread)
    trace.operator("aten::linear", 10, 20, sequence=sequence, thread=thread)
    trace.operator("aten::addmm", 12, 15, sequence=sequence, thread=thread)
    trace.operator("aten::relu_", 40, 5, sequence=sequence + 1, thread=thread)


def backward(trace: Trace, number: int = 1, sequence: int = 5, start: float = 100) -> None:
    for place, (name, seq) in enumerate((("ReluBackward0", sequence + 1), ("AddmmBackward0", sequence))):
        now = start + 50 * place
        for text, at, dur in ((ENGINE + name, now, 40), (name, now + 5, 30)):
            trace.operator(text, at, dur, thread=77, sequence=seq, forward_thread=number)
        trace.operator("aten::mm", now + 10, 10, thread=77)


EXPECTED = [
    ("aten::relu_", 40.0, ENGINE + "ReluBackward0", 100.0),
    ("aten::addmm", 12.0, ENGINE + "AddmmBackward0", 150.0),
]


@pytest.mark.parametrize("dialect", ["new", "middle", "old"])
def test_by_numbers(dialect: str) -> None:
    trace = Trace(dialect)  # type: ignore[arg-type]
    forward(trace)
    backward(trace)
    assert pairs(trace.timeline()) == EXPECTED


def test_by_flows() -> None:
    trace = Trace()
    forward(trace, sequence=50)  # numbers that agree with nothing
    backward(trace)
    trace.backward_flow((40, None), (105, 77))
    trace.backward_flow((12, None), (155, 77))
    trace.backward_flow((3000, None), (4000, 77))  # no operator starts there
    assert pairs(trace.timeline()) == EXPECTED


def test_flows_may_be_off_by_their_rounding() -> None:
    trace = Trace("middle")
    forward(trace)
    backward(trace)
    trace.backward_flow((41, None), (104, 77))
    assert pairs(trace.timeline()) == EXPECTED[:1]


def test_half_a_flow_is_none() -> None:
    trace = Trace()
    forward(trace, sequence=50)
    backward(trace)
    trace.backward_flow((40, None), (105, 77))
    del trace.events[-1]
    assert pairs(trace.timeline()) == []


def test_numbers_are_distinguished_by_thread() -> None:
    """Two threads run forward with the same numbers; backward names them by autograd's own."""
    trace = Trace()
    for thread, start, name in (
        (1, 0, "aten::mul"),
        (2, 1, "aten::mul"),
        (1, 5, "aten::exp"),
        (2, 6, "aten::sin"),
    ):
        trace.operator(name, start, 3, thread=thread, sequence=3 + (start > 3))
    for number, names in ((1, ("MulBackward0", "ExpBackward0")), (2, ("MulBackward0", "SinBackward0"))):
        for sequence, name in zip((3, 4), names, strict=True):
            trace.operator(
                name, 100 * number + sequence, 0.5, thread=77, sequence=sequence, forward_thread=number
            )
    second = {(name, place) for _, place, name, at in pairs(trace.timeline()) if at > 200}
    assert {place for name, place in second if name == "SinBackward0"} == {6.0}
    first = {(name, place) for _, place, name, at in pairs(trace.timeline()) if at < 200}
    assert {place for name, place in first if name == "ExpBackward0"} == {5.0}


def test_steps_that_repeat_a_number() -> None:
    """Of several with the same number, the last before it in time made it."""
    trace = Trace()
    for start in (0, 1000):
        trace.operator("aten::exp", start, 5, sequence=3)
        trace.operator("ExpBackward0", start + 100, 5, sequence=3, forward_thread=1, thread=77)
    assert [(pair[1], pair[3]) for pair in pairs(trace.timeline())] == [(0.0, 100.0), (1000.0, 1100.0)]


@pytest.mark.parametrize(
    ("forward_name", "backward_name"),
    [
        ("aten::_log_softmax", "LogSoftmaxBackward0"),
        ("aten::max_pool2d_with_indices", "MaxPool2DWithIndicesBackward0"),
        ("aten::copy_", "CopyBackwards"),
        ("MyFunction", "MyFunctionBackward"),
        ("_AlltoAllSingle", "_AlltoAllSingleBackward"),
    ],
)
def test_names_that_agree(forward_name: str, backward_name: str) -> None:
    trace = Trace()
    trace.operator(forward_name, 0, 5, sequence=3)
    trace.operator(backward_name, 10, 5, sequence=3, forward_thread=1, thread=77)
    assert len(pairs(trace.timeline())) == 1


def test_no_link_is_better_than_a_wrong_one() -> None:
    trace = Trace()
    trace.operator("aten::zero_", 0, 5, sequence=3)
    trace.operator("MyFunctionBackward", 10, 5, sequence=3, forward_thread=1, thread=77)
    trace.operator("aten::exp", 50, 5, sequence=4)  # after it
    trace.operator("ExpBackward0", 20, 5, sequence=4, forward_thread=1, thread=77)
    links = trace.timeline().links
    assert len(links.forward) == len(links.backward) == 0
    assert links.forward.dtype == np.int64
