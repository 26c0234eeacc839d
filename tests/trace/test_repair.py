"""Broken files: what is not hit is read, and what was lost is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from timeline_checks import assert_sound, host_rows
from trace_builder import Trace, training

from gapless.errors import UnreadableInput
from gapless.trace import chunks, repair
from gapless.trace.read import read_bytes
from gapless.trace.timeline import Timeline


def three() -> bytes:
    """Three operators, ``first``, ``hit`` and ``last``."""
    trace = Trace()
    for number, name in enumerate(("first", "hit", "last")):
        trace.operator(name, 10 * number, 5)
    return trace.text()


def changed(old: str, new: str | bytes) -> Timeline:
    """``hit`` with `old` replaced."""
    data = three()
    begin = data.index(b'"hit"')
    end = data.index(b'"last"')
    middle = data[begin:end]
    assert old.encode() in middle
    new = new.encode() if isinstance(new, str) else new
    data = data[:begin] + middle.replace(old.encode(), new, 1) + data[end:]
    results = [read_bytes(data, chunk=size) for size in (1 << 20, 64)]
    assert results[0].names == results[1].names
    for timeline in results:
        assert_sound(timeline)
        assert {"first", "last"} <= set(timeline.names)
    return results[0]


@pytest.mark.parametrize(
    "value", ["NaN", "-NaN", "nan", "Infinity", "-Infinity", "inf", "-inf", "N/A", "None", "-1.#IND"]
)
def test_values_that_are_no_json(value: str) -> None:
    timeline = changed('"args": {', f'"args": {{"blocks per SM": {value}, "x": {value},')
    assert timeline.names == ("first", "hit", "last")
    assert timeline.notes == ("2 values that are not valid JSON (NaN, N/A) were treated as unknown",)


@pytest.mark.parametrize("value", ["NaN", "[N/A, 1]", "[nan]", "{NaN}"])
def test_values_deep_inside(value: str) -> None:
    timeline = changed('"args": {', f'"args": {{"x": [[{value}, 2]], ')
    assert timeline.names == ("first", "hit", "last")
    assert len(timeline.notes) == 1


def test_a_time_that_is_no_number() -> None:
    timeline = changed('"dur": 5', '"dur": NaN')
    assert timeline.names == ("first", "last")
    assert timeline.notes == (
        "1 value that is not valid JSON (NaN, N/A) was treated as unknown",
        "1 event without a duration was skipped",
    )


@pytest.mark.parametrize("byte", [1, 7, 9, 10, 13, 31])
def test_control_characters(byte: int) -> None:
    timeline = changed('"hit"', b'"h' + bytes([byte]) + b'it"')
    assert len(timeline.host) == 3
    assert timeline.notes == ()


def test_bytes_that_are_no_text() -> None:
    assert changed('"hit"', b'"h\xff\xfeit"').names == ("first", "h\ufffd\ufffdit", "last")


@pytest.mark.parametrize("text", ["\\x", "\\d+", "C:\\work", "\\ud800", "\\u12"])
def test_backslashes_that_escape_nothing(text: str) -> None:
    assert changed('"hit"', f'"hit {text}"').names == ("first", f"hit {text}", "last")


@pytest.mark.parametrize(
    "name",
    [
        'a "b" c',
        '"',
        'f("x", {"y": 1})',
        'foo["bar"]',
        "ends in \\",
        'x", "y',
        'operator""_s'.replace('""', '"" '),
    ],
)
def test_quotes_in_names(name: str) -> None:
    timeline = changed('"hit"', f'"{name}"')
    assert timeline.names == ("first", name, "last")
    assert timeline.host.start.tolist() == [0, 10_000, 20_000]
    assert timeline.host.external.tolist() == [1, 2, 3]
    assert timeline.notes == ("1 event was invalid JSON; their fields were parsed one by one",)


def test_quotes_in_arguments() -> None:
    timeline = changed('"args": {', '"args": {"Call stack": "a "b" c", ')
    assert timeline.names == ("first", "hit", "last")


@pytest.mark.parametrize(
    "line", ["[rank0]: W0712 warning: [x]", "Epoch 3: 100%|#| 5/5", "Traceback {most recent}", "INFO - a, b"]
)
@pytest.mark.parametrize("place", ["between", "before the comma"])
def test_log_lines_between_events(line: str, place: str) -> None:
    data = three()
    old = b"\n  },\n" if place == "between" else b"\n  }"
    at = data.index(old, data.index(b'"hit"')) + len(old)
    timeline = read_bytes(data[:at] + line.encode() + b"\n" + data[at:])
    assert timeline.names == ("first", "hit", "last")
    assert timeline.notes == ("Text that does not belong to the profile was found in one place of the file",)


def test_a_log_line_inside_an_event_costs_that_event() -> None:
    timeline = changed('"dur": 5', '"dur": W0712 00:11 warning\n5')
    assert timeline.names == ("first", "last")
    assert timeline.notes == ("1 event was damaged and skipped",)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"dur": 5', '"dur": "5"'),
        ('"pid": 4000', '"pid": "4000"'),
        ('"External id": 2', '"External id": "2"'),
        ('"External id": 2', '"External id": 2.0'),
        ('"External id": 2', '"External id": 2, "correlation": null, "stream": [], "bytes": {}'),
        ('"External id": 2', '"External id": 2, "Call stack": 5, "Sequence number": "x"'),
    ],
)
def test_values_of_other_types(old: str, new: str) -> None:
    timeline = changed(old, new)
    assert [row[1:] for row in host_rows(timeline)] == [
        ("first", "4000", 0, 5000),
        ("hit", "4000", 10_000, 15_000),
        ("last", "4000", 20_000, 25_000),
    ]
    assert timeline.host.external.tolist() == [1, 2, 3]


@pytest.mark.parametrize("number", ["9" * 30, "-" + "9" * 30, "9" * 5000, "1e400", "18446744073709551615"])
def test_huge_numbers(number: str) -> None:
    timeline = changed('"External id": 2', f'"External id": {number}')
    assert timeline.names == ("first", "hit", "last")


@pytest.mark.parametrize("key", ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])
def test_missing_keys(key: str) -> None:
    document = json.loads(three())
    del document["traceEvents"][1][key]
    timeline = read_bytes(json.dumps(document).encode())
    assert_sound(timeline)
    lost = key in ("ts", "dur", "cat")
    assert [timeline.names[number] for number in timeline.host.name].count("first") == 1
    assert len(timeline.host) == 3 - lost


def test_a_comma_too_many() -> None:
    data = three()
    end = data.rindex(b"],")
    timeline = read_bytes(data[:end] + b",\n" + data[end:])
    assert len(timeline.host) == 3
    assert timeline.facts.truncated is False


@pytest.mark.parametrize("between", ["", "\n", " , "])
def test_profiles_written_one_after_the_other(between: str) -> None:
    training_trace, two = training(steps=1), Trace()
    two.operator("in the second", 5000, 5)
    for first, second in (
        (training_trace.text(), two.text()),
        *[tuple(json.dumps(t.document()["traceEvents"]).encode() for t in (training_trace, two))],
    ):
        timeline = read_bytes(first + between.encode() + second)
        assert "in the second" in timeline.names
        assert "aten::item" in timeline.names
        assert timeline.notes == ("The file contains 2 profiles one after the other; they were read as one",)
        assert not timeline.facts.truncated


def test_a_list_that_goes_on() -> None:
    data = three()
    at = data.index(b"},", data.index(b'"first"')) + 1
    timeline = read_bytes(data[:at] + b"][" + data[at + 1 :])
    assert timeline.names == ("first", "hit", "last")


def test_beginnings_and_ends_instead_of_spans() -> None:
    trace = Trace()
    for ph, name, time_, thread in (
        ("B", "outer", 0, 1),
        ("B", "other", 1, 2),
        ("B", "inner", 2, 1),
        ("E", "", 5, 1),
        ("E", "", 7, 2),
        ("E", "", 9, 1),
        ("E", "", 10, 1),
        ("B", "never ends", 11, 1),
    ):
        event = {"ph": ph, "name": name, "pid": 1, "tid": thread, "ts": trace.time(time_)}
        trace.raw(**event, **({"cat": "cpu_op"} if ph == "B" else {}))
    timeline = trace.timeline()
    assert [row[1:] for row in host_rows(timeline)] == [
        ("outer", "1", 0, 9000),
        ("inner", "1", 2000, 5000),
        ("other", "2", 1000, 7000),
    ]
    assert timeline.notes == (
        "1 event whose beginning is missing was skipped",
        "1 event whose end is missing was skipped",
    )


def test_pairs_across_pieces() -> None:
    trace = Trace()
    for number in range(50):
        for ph, place in (("B", 0), ("E", 5)):
            trace.raw(
                ph=ph, cat="cpu_op", name=f"op{number}", pid=1, tid=1, ts=trace.time(10 * number + place)
            )
    whole, other = read_bytes(trace.text()), read_bytes(trace.text(), chunk=100)
    assert host_rows(whole) == host_rows(other)
    assert len(whole.host) == 50


def test_cut_anywhere() -> None:
    """A killed job: everything that was written whole is there, and what is missing is said."""
    data = training(steps=1).text()
    whole = read_bytes(data)
    opened = data.index(b"[", data.index(b'"traceEvents"'))
    counts = []
    for stop in range(0, len(data), 23):
        if stop <= opened:
            with pytest.raises(UnreadableInput):
                read_bytes(data[:stop], "x.json")
            continue
        try:
            timeline = read_bytes(data[:stop])
        except UnreadableInput:
            counts.append(0)
            continue
        assert_sound(timeline)
        counts.append(timeline.facts.events)
        complete = data[:stop].rstrip().endswith(b"]") or b"\n  ],\n" in data[:stop][-200:]
        if timeline.facts.truncated:
            assert any("cut off" in note or "truncated" in note for note in timeline.notes)
        else:
            assert complete
    assert counts == sorted(counts)
    assert counts[-1] == whole.facts.events


def test_the_head_may_be_broken() -> None:
    trace = Trace(rank=3, world_size=8)
    trace.operator("aten::mm", 0, 5)
    trace.launch("k", 1, kernel=(6, 1))
    trace.head["note"] = "HERE"
    data = trace.text().replace(b'"HERE"', b"NaN")
    timeline = read_bytes(data)
    assert (timeline.facts.rank, timeline.facts.world_size) == (3, 8)
    assert timeline.facts.gpus[0].name == "NVIDIA A100-SXM4-40GB"
    assert timeline.facts.origin > 10**18


@pytest.mark.parametrize("key", ["deviceProperties", "distributedInfo", "baseTimeNanoseconds"])
@pytest.mark.parametrize("value", [None, "x", 5, [], {}, [None], 1e30])
def test_the_head_may_hold_anything(key: str, value: object) -> None:
    trace = Trace(rank=3)
    trace.operator("aten::mm", 0, 5)
    document = trace.document() | {key: value}
    timeline = read_bytes(json.dumps(document).encode())
    assert len(timeline.host) == 1


@pytest.mark.parametrize(
    "piece",
    [
        b'{"ph": "X", "name": "',
        b'{"ph":',
        b'{"ph": 1}, ',
        b'{"name": "a}, {b", ',
        b"},{",
        b'"},{"',
        b'{"a": [{"b": 1}, {"c": [}, {',
        b"[[[[{",
        b"\\",
        b"\xff},\x00{",
        b'{"ph": "X", "ts": NaN}, x ',
    ],
)
def test_no_byte_is_looked_at_without_end(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the decoders are given in all grows with the file, not with its square."""
    looked = 0

    class Counting:
        def __init__(self, decoder: Any) -> None:
            self.decoder = decoder

        def decode(self, data: bytes) -> Any:
            nonlocal looked
            looked += len(data)
            return self.decoder.decode(data)

    class Counted(repair.EventDecoders):
        def __init__(self, exact: bool = False) -> None:
            super().__init__(exact)
            self.decode_event = self.decode_all = self.decode_loosely = None  # type: ignore[assignment]
            for name in ("decode_event", "decode_all", "decode_loosely"):
                setattr(self, name, Counting(getattr(repair.EventDecoders(exact), name)))

    class Scanner(json.JSONDecoder):
        def raw_decode(self, text: str, idx: int = 0) -> tuple[Any, int]:
            nonlocal looked
            try:
                value, end = super().raw_decode(text, idx)
            except json.JSONDecodeError as error:
                looked += error.pos - idx
                raise
            looked += end - idx
            return value, end

    monkeypatch.setattr(chunks, "EventDecoders", Counted)
    monkeypatch.setattr(repair.json, "JSONDecoder", Scanner)
    data = three()
    at = data.index(b'"hit"')
    for size in (10_000, 100_000):
        broken = data[:at] + piece * (size // len(piece)) + data[at:]
        looked = 0
        read_bytes(broken)
        assert looked < 60 * len(broken), size
