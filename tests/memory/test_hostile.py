"""Files that are damaged, foreign or meant to harm: refused in one short line, before they cost anything."""

from __future__ import annotations

import copy
import gzip
import io
import json
import pickle
import pickletools
import struct
from typing import Any

import pytest
from hypothesis import example as with_example
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.errors import UnreadableInput
from gapless.memory.export import ExportingSimulation
from gapless.memory.opcodes import check_pickle, problem
from gapless.memory.recorder import Recorder
from gapless.memory.report import report
from gapless.memory.sizes import MIB
from gapless.memory.snapshot import gunzip, read_bytes, read_value
from gapless.model.memory import MemoryRun, check

STOP = pickle.STOP
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def example(conf: str = "") -> dict[str, Any]:
    """A snapshot with most of what there can be in one."""
    recorder = Recorder()
    for name in range(5):
        recorder.alloc(name, (name + 1) * 3 * MIB // 2, stream=name % 2)
    recorder.free(2)
    recorder.free(3, waits=True)
    recorder.alloc("small", 700)
    recorder.done(3)
    recorder.alloc("more", 30 * MIB)
    recorder.empty_cache()
    recorder.free("more")
    simulation = ExportingSimulation(recorder.run(), conf, total=1 << 30)
    simulation.go(points=1)
    snapshot_value: dict[str, Any] = simulation.snapshot()
    return snapshot_value


EXAMPLES = [example(conf) for conf in ("", "expandable_segments:True", "max_split_size_mb:20")]
PICKLES = [pickle.dumps(EXAMPLES[0], protocol) for protocol in PROTOCOLS]


def refusal(data: bytes) -> str:
    """Why `data` is refused; "" where it is read. Any other error is a defect."""
    try:
        read_bytes(data, "s.pickle")
    except UnreadableInput as error:
        said = str(error)
        assert "\n" not in said
        assert len(said) < 300
        return said
    return ""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_is_read(protocol):
    assert read_bytes(PICKLES[protocol], "it") == read_value(EXAMPLES[0], "it")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cut_off_anywhere(protocol):
    data = PICKLES[protocol]
    for length in range(0, len(data) - 1, 37):
        assert "is not a pickle, or is damaged" in refusal(data[:length])


@settings(max_examples=150, deadline=None)
@with_example(2, [(2406, 0)], b"F")  # the rest of the file is no number, and is quoted
@given(
    st.integers(0, len(PICKLES) - 1),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=5),
    st.binary(max_size=8),
)
def test_bytes_that_are_others(protocol, changes, more):
    data = bytearray(PICKLES[protocol])
    for at, value in changes:
        data[at % len(data)] = value
    at = changes[0][0] % len(data)
    data[at:at] = more
    assert len(refusal(bytes(data))) < 300


def runs_of(value: Any) -> tuple[MemoryRun, ...]:
    """The runs in `value`; none where it is refused."""
    said = ""
    try:
        return read_value(value, "s.pickle")
    except UnreadableInput as error:
        said = str(error)
    assert said
    assert "\n" not in said
    assert len(said) < 300
    return ()


ODD = st.one_of(
    st.sampled_from([None, True, "", "x", b"x", 1.5, float("nan"), (), [], {}, [[]], [{}]]),
    st.sampled_from([-1, 0, 1, 512, 1 << 40, 1 << 63, 1 << 64, 10**400]),
    st.sampled_from(["alloc", "free_completed", "segment_map", "oom", "active_allocated", "inactive"]),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    paths = [path] if path else []
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        paths += places(value[key], (*path, key))
    return paths


WHERE = [places(example) for example in EXAMPLES]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(EXAMPLES) - 1), st.integers(0, 1 << 16), st.sampled_from("dro"), ODD)
@with_example(1, 3412, "r", 1)  # two address spaces that begin at one address
def test_values_that_are_others(number, at, how, odd):
    """What is read all the same is a sound run, and can be replayed."""
    value = copy.deepcopy(EXAMPLES[number])
    path = WHERE[number][at % len(WHERE[number])]
    held: Any = value
    for key in path[:-1]:
        held = held[key]
    if how == "d":
        del held[path[-1]]
    elif how == "r" and isinstance(held, list):
        held.append(held[path[-1]])
    else:
        held[path[-1]] = odd
    runs = runs_of(value)
    assert [check(run) for run in runs] == [""] * len(runs)
    assert all(report(run).sentence for run in runs)


# Bombs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a memo of two billion places
        b"]p999999999999\n.",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",  # a bytearray of a terabyte
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
        b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"x.",  # a number of a gigabyte
        b"X\xff\xff\xff\xffx.",
        b"\x80\x05\x97.",  # a buffer of another process
    ],
)
def test_a_few_bytes_that_ask_for_much(data, capfd):
    assert "is not a pickle, or is damaged" in refusal(data)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "data",
    [
        b"(" * 300_000 + b"t" * 300_000 + b".",
        b"]" * 300_000 + b"a" * 299_999 + b".",
        b"\x80\x04" + b"}" + b"]\x94" + b"h\x00a" * 50_000 + b"0.",
        b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
    ],
)
def test_deep_and_endless_values(data):
    assert refusal(data)


def test_a_value_that_repeats_itself():
    blocks = EXAMPLES[0]["segments"][0]["blocks"] * 300
    segment = EXAMPLES[0]["segments"][0] | {"blocks": blocks}
    data = pickle.dumps({"segments": [dict(segment) for _ in range(1500)], "device_traces": []})
    assert len(data) < 1 << 20
    assert "it contains itself" in refusal(data)
    trace = [{"action": "snapshot", "size": 0, "stream": 0}]
    data = pickle.dumps({"segments": [], "device_traces": [trace * 1000] * 1000})
    assert "it contains itself" in refusal(data)


def test_a_packed_bomb():
    data = gzip.compress(bytes(300 << 20), 1)
    assert len(data) < 2 << 20
    assert "unpack to more than 256 MiB" in refusal(data)


def test_packed_in_several_parts_and_cut_off():
    data = gzip.compress(PICKLES[4][:500]) + gzip.compress(PICKLES[4][500:]) + bytes(512)
    assert gunzip(data, "it") == PICKLES[4]
    for length in (5, 100, len(data) // 2 - 400):
        assert "is compressed and damaged" in refusal(data[:length])


def test_json_that_harms():
    for text in (
        '{"segments": [' * 30_000,
        "[" * 100_000,
        json.dumps({"segments": [], "device_traces": [9]}),
    ):
        assert refusal(text.encode())


# The walk over opcodes ----------------------------------------------------------------------------


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300) | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(VALUES, st.sampled_from(PROTOCOLS))
def test_what_pickle_writes_passes(value, protocol):
    data = pickle.dumps(value, protocol)
    imports = any(op.name in ("GLOBAL", "STACK_GLOBAL") for op, _, _ in pickletools.genops(data))
    assert imports or problem(data) == ""


def test_a_memo_of_many_places_passes():
    value = [str(number) for number in range(70_000)]
    for protocol in PROTOCOLS:
        assert problem(pickle.dumps(value, protocol)) == ""
    many = io.BytesIO()
    pickle.Pickler(many, 2).dump([[] for _ in range(300_000)])
    assert problem(many.getvalue()) == ""


# Keys that collide ---------------------------------------------------------------------------------

COLLIDING = [number * ((1 << 61) - 1) + 7 for number in range(3000)]
"""Whole numbers of one and the same hash: each item of a dictionary of them takes as long as all before."""


def number(value: int) -> bytes:
    data = pickle.encode_long(value)
    return pickle.LONG1 + bytes([len(data)]) + data


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(lambda keys: b"}(" + b"".join(key + b"N" for key in keys) + b"u", id="at once"),
        pytest.param(lambda keys: b"}" + b"".join(key + b"Ns" for key in keys), id="one by one"),
        pytest.param(lambda keys: b"}" + b"".join(b"(" + key + b"Nu" for key in keys), id="in batches"),
        pytest.param(lambda keys: b"(" + b"".join(key + b"N" for key in keys) + b"d", id="from a mark"),
        pytest.param(
            lambda keys: b"}q\0" + b"".join(b"h\0(" + key + b"Nu0" for key in keys), id="from the memo"
        ),
        pytest.param(lambda keys: b"}" + b"".join(b"2(" + key + b"Nu0" for key in keys), id="twice the same"),
        pytest.param(lambda keys: b"}(" + b"".join(key + b"(l" for key in keys) + b"u", id="with lists"),
        pytest.param(
            lambda keys: b"}(" + b"".join(key + b"K\1\x85" for key in keys) + b"u", id="with tuples"
        ),
    ],
)
def test_many_keys_that_are_no_text_are_refused(written):
    said = refusal(b"\x80\4" + written([number(key) for key in COLLIDING]) + STOP)
    assert "a large dictionary with keys that are not text (int)" in said
    pairs = [number(index) + number(index) + b"\x86" for index in range(3000)]
    assert "keys that are not text (tuple)" in refusal(b"\x80\4" + written(pairs) + STOP)


def test_sets_are_refused():
    for value in (set(COLLIDING), frozenset(COLLIDING[:2])):
        assert "it contains sets" in refusal(pickle.dumps({"segments": value}, 4))


def test_a_large_dictionary_of_text_is_read():
    value = {**EXAMPLES[0], "more": {str(number): [{}, (number,)] for number in range(3000)}}
    for protocol in PROTOCOLS:
        assert read_bytes(pickle.dumps(value, protocol), "it") == read_value(EXAMPLES[0], "it")


def test_what_torch_writes_is_read_without_looking_at_each_key():
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert not check_pickle(PICKLES[protocol]).careful


def test_a_number_of_a_million_digits_is_refused():
    for opcode in (b"I", b"L"):
        assert refusal(opcode + b"9" * 1_000_000 + b"\n" + STOP)


def test_a_stack_that_is_too_deep_is_refused():
    frames = [{"name": "f", "filename": "/a.py", "line": line} for line in range(6000)]
    entry = {"action": "segment_free", "addr": 1 << 30, "size": 2 * MIB, "stream": 0, "frames": frames}
    assert "a stack of 6000 calls" in refusal(pickle.dumps({"segments": [], "device_traces": [[entry]]}))


def test_bytes_after_the_end_are_ignored():
    assert problem(PICKLES[2] + b"\0\xff" + STOP) == ""
