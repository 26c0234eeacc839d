"""Damaged files never crash: a timeline, or one line that says why there is none."""

from __future__ import annotations

import copy
import gzip
import io
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_checks import assert_sound
from trace_builder import Dialect, Trace, training

from gapless.errors import UnreadableInput
from gapless.files.sources import Source
from gapless.trace.chunks import Rest, iter_events
from gapless.trace.read import read_bytes

TEXTS: dict[Dialect, bytes] = {d: training(d, steps=1).text() for d in ("new", "middle", "old")}
DOCUMENT = training(steps=1).document()
dialects = st.sampled_from(["new", "middle", "old"])
chunks = st.sampled_from([64, 1000, 1 << 20])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def check_reading(data: bytes, chunk: int = 1 << 20) -> None:
    try:
        timeline = read_bytes(data, "a.json", chunk)
    except UnreadableInput as error:
        message = str(error)
        assert message.startswith("a.json")
        assert "\n" not in message
        assert len(message) < 400
    else:
        assert_sound(timeline)


@settings(deadline=None, max_examples=100)
@given(dialect=dialects, data=st.data(), chunk=chunks)
def test_bytes_changed(dialect: Dialect, data: st.DataObject, chunk: int) -> None:
    text = bytearray(TEXTS[dialect])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        change = data.draw(st.sampled_from(["flip", "delete", "insert", "move", "cut"]))
        length = data.draw(st.integers(1, 60))
        if change == "flip":
            text[at] = data.draw(st.integers(0, 255))
        elif change == "delete":
            del text[at : at + length]
        elif change == "insert":
            text[at:at] = data.draw(
                st.binary(max_size=20) | st.sampled_from([b'"', b"},{", b"]", b"[", b"{", b"\\"])
            )
        elif change == "move":
            part = text[at : at + length]
            del text[at : at + length]
            to = data.draw(st.integers(0, len(text)))
            text[to:to] = part
        elif len(text) > 4000:
            del text[max(at, 3000) :]
        text = text or bytearray(b" ")
    check_reading(bytes(text), chunk)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_values_changed(data: st.DataObject) -> None:
    document: dict[str, Any] = copy.deepcopy(DOCUMENT)
    rows = document["traceEvents"]
    for _ in range(data.draw(st.integers(1, 8))):
        event = rows[data.draw(st.integers(0, len(rows) - 1))]
        target = event
        if isinstance(event, dict) and isinstance(event.get("args"), dict) and data.draw(st.booleans()):
            target = event["args"]
        if not isinstance(target, dict) or not target:
            continue
        key = data.draw(st.sampled_from(sorted(target)))
        if data.draw(st.booleans()):
            del target[key]
        else:
            target[key] = data.draw(values)
    data.draw(st.randoms(use_true_random=False)).shuffle(rows)
    check_reading(json.dumps(document).encode())


@settings(deadline=None, max_examples=60)
@given(first=values, more=st.lists(values, max_size=4), whole=values)
def test_anything_for_events(first: object, more: list[object], whole: object) -> None:
    check_reading(json.dumps({"traceEvents": [first, *more]}).encode())
    check_reading(json.dumps([first, *more]).encode())
    check_reading(json.dumps(whole).encode())
    check_reading(json.dumps({"traceEvents": whole}).encode())


@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=300))
def test_anything(data: bytes) -> None:
    check_reading(data)
    check_reading(b'{"traceEvents": [' + data)
    check_reading(b'{"traceEvents": [{"ph": "X"' + data + b"}]}")


@settings(deadline=None, max_examples=60)
@given(at=st.integers(0, 4000), value=st.integers(0, 255), stop=st.integers(1, 4000))
def test_compressed_files_damaged(at: int, value: int, stop: int) -> None:
    data = bytearray(gzip.compress(TEXTS["new"], mtime=0))
    data[at % len(data)] = value
    check_reading(bytes(data))
    check_reading(bytes(data[: stop % len(data)]))


@settings(deadline=None, max_examples=60)
@given(hits=st.sets(st.integers(0, 29), max_size=10), chunk=chunks)
def test_only_what_is_hit_is_lost(hits: set[int], chunk: int) -> None:
    trace = Trace()
    for number in range(30):
        trace.operator(f"op{number}", 10 * number, 5)
    text = trace.text()
    for number in hits:
        text = text.replace(f'"op{number}", "pid"'.encode(), f'"op{number}" "pid'.encode())
    rest = Rest()
    source = Source(io.BytesIO(text), "here")
    event_names = [event.name for some in iter_events(source, rest, "here", chunk) for event in some]
    assert [name for name in event_names if name.startswith("op")] == [
        f"op{number}" for number in range(30) if number not in hits
    ]
    assert rest.damage.dropped.total() == len(hits)
