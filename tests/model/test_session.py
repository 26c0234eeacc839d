"""Sessions on disk: what is saved comes back, and what is not a session is refused in one line."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.errors import UnreadableInput
from gapless.model import Ending, Environment, Event, Session, Site, SourceLine, StepMark
from gapless.model.session import SAVED, decode, encode, load, save

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(0, 2**40)
times = st.floats(0, 1e9)
lines = st.builds(SourceLine, text, numbers, text, text, text)
stacks = st.lists(lines, max_size=4).map(tuple)
sites = st.builds(
    Site,
    operator=text,
    mechanism=st.sampled_from(["read", "size", "h2d", "explicit"]),
    call=text,
    detail=text,
    stack=stacks,
    node=text,
    forward=stacks,
)
marks = st.builds(
    StepMark,
    kind=st.sampled_from(["optimizer", "profiler", "user", "backward", "batch"]),
    tick=numbers,
    time=times,
    name=text,
    stack=stacks,
)


@st.composite
def sessions(draw):
    own = draw(st.lists(sites, max_size=4))
    events = st.builds(
        Event,
        site=st.integers(0, max(len(own) - 1, 0)),
        tick=numbers,
        time=times,
        calls=numbers,
        waits=numbers,
        bytes=numbers,
        phase=st.sampled_from(["train", "eval"]),
    )
    return Session(
        script=tuple(draw(st.lists(text, max_size=3))),
        environment=draw(st.builds(Environment, gapless=text, device=text, emulated=st.booleans())),
        ending=draw(st.builds(Ending, how=st.sampled_from(["exit", "error"]), status=numbers, message=text)),
        sites=tuple(own),
        events=tuple(draw(st.lists(events, max_size=6))) if own else (),
        marks=tuple(draw(st.lists(marks, max_size=4))),
        notes=tuple(draw(st.lists(text, max_size=2))),
        duration=draw(times),
    )


@settings(deadline=None)
@given(sessions())
def test_a_saved_session_loads_unchanged(session):
    assert decode(encode(session)) == session


A, B, C = SourceLine("a.py", 1, "f", "x"), SourceLine("a.py", 2, "g"), SourceLine("t.py", 3, "h", "", "torch")
VERSION = SAVED.version
SMALL = Session(
    sites=(
        Site(operator="o", mechanism="read", stack=(C, A, B)),
        Site(operator="p", mechanism="read", stack=(C, A, B), forward=(A, B)),
    ),
    events=(Event(site=1, tick=3),),
    marks=(StepMark(kind="user", tick=0, time=1.0, stack=(A, B)),),
)


def test_each_line_and_each_stack_is_named_once():
    document = json.loads(encode(SMALL))
    assert [entry["line"] for entry in document["lines"]] == [3, 1, 2]
    assert document["stacks"] == [[0, 1, 2], [1, 2]]
    assert [(site["stack"], site.get("forward")) for site in document["sites"]] == [(0, None), (0, 1)]
    assert document["marks"][0]["stack"] == 1


def test_undecodable_text_is_escaped():
    session = Session(script=("caf\udce9.py",))
    assert decode(encode(session)).script == ("caf\\udce9.py",)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "run.json is not a saved session"),
        (b"\x80\x81garbage", "run.json is not a saved session"),
        (b"[1, 2]", "run.json is not a saved session"),
        (b'{"traceEvents": []}', "run.json is JSON but not a saved session"),
        (
            b'{"format": "gapless-session", "version": %d}' % (VERSION + 1),
            f"run.json is a session of version {VERSION + 1}, but this Gapless reads only up to "
            f"{VERSION}: upgrade Gapless",
        ),
        (b'{"format": "gapless-session", "version": 1}', "run.json is a damaged session"),
        (encode(SMALL).replace(b"[[0,1,2]", b"[[0,1,9]"), "run.json is a damaged session"),
        (encode(SMALL).replace(b"[[0,1,2]", b"[[0,1,-1]"), "a stack refers to a line that does not exist"),
        (encode(SMALL).replace(b'"site":1', b'"site":7'), "an event refers to a site that does not exist"),
        (encode(SMALL).replace(b'"stack":0', b'"stack":"x"'), "run.json is a damaged session"),
        (
            encode(SMALL).replace(b'"mechanism":"read"', b'"mechanism":"magic"'),
            "run.json is a damaged session",
        ),
    ],
)
def test_other_files_are_refused_as_sessions(data, words):
    with pytest.raises(UnreadableInput) as refused:
        decode(data, "run.json")
    assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("cut", range(10, len(encode(SMALL)), 37))
def test_half_a_session_is_refused(cut):
    with pytest.raises(UnreadableInput):
        decode(encode(SMALL)[:cut])


def test_save_and_load(tmp_path):
    path = tmp_path / "run.gapless.json"
    save(SMALL, path)
    save(msgspec.structs.replace(SMALL, duration=2.0), path)
    assert load(path).duration == 2.0
    assert list(tmp_path.iterdir()) == [path]


def test_unreadable_and_unwritable_places(tmp_path):
    with pytest.raises(UnreadableInput, match=r"cannot read .*nothing.json: No such file"):
        load(tmp_path / "nothing.json")
    with pytest.raises(UnreadableInput, match=r"cannot write .*there is no folder"):
        save(SMALL, tmp_path / "no folder" / "run.json")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(UnreadableInput, match=r"cannot write .*it is a folder"):
        save(SMALL, folder)
    assert list(tmp_path.iterdir()) == [folder]
