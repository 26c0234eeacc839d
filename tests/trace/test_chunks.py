"""A file is read in pieces: where they end makes no difference."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_checks import assert_same
from trace_builder import Dialect, Trace, training

from gapless.trace.chunks import Rest, iter_events
from gapless.trace.read import read_bytes


class Slow:
    """Gives what it holds in pieces of one size, the first of another."""

    def __init__(self, data: bytes, first: int, then: int) -> None:
        self._data = io.BytesIO(data)
        self._first, self._then = first, then

    def read(self, size: int, /) -> bytes:
        size, self._first = self._first or self._then, 0
        return self._data.read(size)


def names(data: bytes, first: int, then: int, size: int = 1 << 20) -> tuple[list[str], Rest]:
    rest = Rest()
    found_names = [
        event.name for some in iter_events(Slow(data, first, then), rest, "here", size) for event in some
    ]
    return found_names, rest


def awkward() -> Trace:
    """Names and arguments that look like the end of an event."""
    trace = Trace()
    trace.operator("void f<{lambda()#1}, {lambda()#2}>", 0, 5)
    trace.operator('a "quoted" name }, {"ph": "X"', 6, 5)
    trace.operator("], [", 12, 5, extra=[{"a": [{"b": 1}, {"c": 2}]}, {"d": {}}])
    trace.operator("\\\\ }", 18, 5, **{"Input Dims": [[1, 2], []]})
    trace.operator("größer", 24, 5)
    return trace


def test_a_file_may_be_cut_at_any_byte() -> None:
    data = awkward().text()
    whole, rest = names(data, 0, len(data))
    assert len(whole) == 8
    for first in range(1, len(data)):
        found_names, cut = names(data, first, len(data))
        assert found_names == whole, first
        assert (cut.before, cut.after, cut.truncated) == (rest.before, rest.after, False)
        assert not cut.damage.dropped.total(), first


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_pieces_of_any_size(size: int) -> None:
    data = awkward().text()
    whole = names(data, 0, len(data))[0]
    assert names(data, 0, size)[0] == whole
    for first in range(100, len(data), 37):  # more than was asked for, to begin with
        assert names(data, first, size, size=1)[0] == whole


@settings(deadline=None, max_examples=40)
@given(
    dialect=st.sampled_from(["new", "middle", "old"]),
    size=st.integers(1, 20_000),
    indent=st.sampled_from([None, 0, 2]),
)
def test_the_timeline_is_the_same(dialect: Dialect, size: int, indent: int | None) -> None:
    trace = training(dialect, steps=1)
    data = json.dumps(trace.document(), indent=indent).encode()
    assert_same(read_bytes(data, chunk=size), read_bytes(data))


def test_layout_makes_no_difference() -> None:
    trace = training()
    timeline = read_bytes(trace.text())
    for data in (
        json.dumps(trace.document()),
        json.dumps(trace.document(), indent=4),
        json.dumps(trace.document(), separators=(",", ":")),
        "\ufeff" + json.dumps(trace.document()),
    ):
        other = read_bytes(data.encode())
        assert timeline.host.start.tolist() == other.host.start.tolist()
        assert timeline.names == other.names
        assert timeline.facts.gpus == other.facts.gpus
        assert other.notes == ()


def test_a_bare_list_of_events() -> None:
    trace = training()
    data = json.dumps(trace.document()["traceEvents"]).encode()
    assert read_bytes(data).names == trace.timeline().names
    assert read_bytes(data).notes == ()


def test_keys_in_any_order() -> None:
    trace = training()
    turned = dict(reversed(trace.document().items()))
    turned["traceEvents"] = [dict(reversed(event.items())) for event in turned["traceEvents"]]
    other = read_bytes(json.dumps(turned).encode())
    timeline = trace.timeline()
    assert (timeline.names, timeline.threads, timeline.facts.gpus) == (
        other.names,
        other.threads,
        other.facts.gpus,
    )


def test_events_far_longer_than_a_piece() -> None:
    trace = Trace()
    trace.operator("before", 0, 5)
    trace.operator("long", 6, 5, **{"Concrete Inputs": ["x" * 300_000]})
    trace.operator("after", 12, 5)
    assert read_bytes(trace.text(), chunk=1000).names == ("before", "long", "after")
