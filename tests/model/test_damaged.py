"""Damaged files of each kind that Gapless saves: one line at the worst, in every format."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
from damage import damaged
from hypothesis import strategies as st
from memory_runs import Recorder, trained
from trace_builder import training

from gapless.analyze.estimate.machine import TimedEntry, run_and_model
from gapless.analyze.estimate.times import USUAL
from gapless.commands import main
from gapless.errors import UnreadableInput
from gapless.files.kinds import kind_of_bytes
from gapless.memory.export import ExportingSimulation
from gapless.model import loading, memory, profile, session
from gapless.model._disk import CHANGED_NOTE
from gapless.model._sound import MAX_NUMBER, find_problem
from gapless.model.profile import Collectives, MemoryUse, Price, Prices, Profile, Steps
from gapless.model.programme import Entry, GpuRates
from gapless.render import formats
from gapless.replay.model import ReplayRefusal

SAVED = Path(__file__).parent / "saved"
MODULES = {"session": session, "profile": profile, "memory": memory, "loader": loading}
READERS = {
    "session": ["compare", str(SAVED / "session.json")],
    "profile": ["compare", str(SAVED / "profile.json")],
    "memory": ["memory", "-q"],
    "loader": ["loader", "-q"],
    "trace": ["trace", "-q"],
    "snapshot": ["memory", "-q"],
}
"""What reads a file of each kind, besides `gapless show`."""


def whole(kind: str) -> bytes:
    """A file of that kind."""
    if kind == "trace":
        return training("old", steps=2).text()
    if kind == "snapshot":
        replay = ExportingSimulation(trained(2))
        replay.go(points=1)
        return pickle.dumps(replay.snapshot())
    return (SAVED / f"{kind}.json").read_bytes()


@pytest.mark.parametrize("kind", READERS)
@hypothesis.given(seed=st.integers(0, 1 << 32), form=st.sampled_from(list(formats())), other=st.booleans())
@hypothesis.settings(
    max_examples=40, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], derandomize=True
)
def test_a_damaged_file_is_shown_or_refused_in_one_line(tmp_path, capsys, kind, seed, form, other):
    path = tmp_path / "damaged.json"
    path.write_bytes(damaged(whole(kind), seed))
    command = READERS[kind] if other else ["show"]
    status = main([command[0], "-f", form, *command[1:], str(path)])
    out, err = capsys.readouterr()
    assert status in (0, 2, 3)
    assert out if status == 0 and form == "text" else status == 0 or not out
    assert 1 <= err.count("\n") <= 2 if status else not err


def as_short(text: str) -> float:
    """A number as programs write it that know no integers."""
    return int(float(text)) if float(text).is_integer() else float(text)


@pytest.mark.parametrize(("kind", "module"), MODULES.items())
class TestChecksum:
    def test_a_changed_file_says_so(self, kind, module):
        saved = module.encode(module.decode(whole(kind)))
        field = b'"items":' if kind == "loader" else b'"line":'
        changed = saved.replace(field, field + b"1", 1)
        assert changed != saved
        assert all(CHANGED_NOTE in notes for notes in self.notes(module.decode(changed)))

    def test_a_file_that_only_looks_otherwise_does_not(self, kind, module):
        value = module.decode(whole(kind))
        saved = module.encode(value)
        assert module.decode(saved) == value
        fields = json.loads(saved)
        for text in (
            saved.decode() + "\n",
            json.dumps(fields, indent=2),
            json.dumps(fields, indent=2, sort_keys=kind != "loader"),  # the order of its advice is shown
            json.dumps(json.loads(saved, parse_float=as_short)),
        ):
            assert module.decode(text.encode()) == value
            assert kind_of_bytes(text.encode(), "").name == kind
        assert all(CHANGED_NOTE not in notes for notes in self.notes(value))

    def notes(self, value: Any) -> list[tuple[str, ...]]:
        return [each.notes for each in (value if isinstance(value, tuple) else (value,))]


class TestNumbers:
    @pytest.mark.parametrize(
        "value", [MAX_NUMBER, -2, 1 << 63, -(1 << 63), float("inf"), float("nan"), 1e300]
    )
    @pytest.mark.parametrize(
        "wrap", [lambda value: value, lambda value: (1, value), lambda value: {"a": value}]
    )
    def test_numbers_out_of_bounds_are_named(self, value, wrap):
        problem = find_problem(msgspec.defstruct("One", [("size", Any)])(wrap(value)), -1)
        assert problem.startswith("size")

    @pytest.mark.parametrize("value", [-1, 0, MAX_NUMBER - 1, 0.5, True, None, "x", (), (1, 2), (0.5, 1)])
    def test_possible_values_are_accepted(self, value):
        assert find_problem(msgspec.defstruct("One", [("size", Any)])(value), -1) == ""

    def test_addresses_are_larger_than_sizes(self):
        struct = msgspec.defstruct("One", [("address", int), ("size", int)])
        assert find_problem(struct(2**64 - 1, 0), -1) == ""
        assert find_problem(struct(0, 2**64 - 1), -1).startswith("size is")

    def test_endless_text_is_named(self):
        assert find_problem(msgspec.defstruct("One", [("code", str)])("x" * (2 << 20)), -1).startswith(
            "code has"
        )


GPU = {"fp32": 1.0, "bandwidth": 1.0, "pcie": 1.0}


def document(kind: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((SAVED / f"{kind}.json").read_bytes())
    return data


class TestSessions:
    def with_memory(self) -> dict[str, Any]:
        recorder = Recorder()
        recorder.alloc("x", 1 << 20)
        recorder.free("x")
        run = json.loads(memory.encode([recorder.run()]))["runs"][0]
        saved = document("session")
        saved["session"]["memory"] = [run]
        return saved

    @pytest.mark.parametrize(
        ("field", "value"), [("size", [2**63, 0]), ("ident", [0, 0, 0]), ("place", []), ("action", [99, 1])]
    )
    def test_their_memory_is_checked(self, field, value):
        memory = self.with_memory()
        assert session.decode(json.dumps(memory).encode()).memory
        memory["session"]["memory"][0][field] = value
        with pytest.raises(UnreadableInput, match="damaged session"):
            session.decode(json.dumps(memory).encode())

    @pytest.mark.parametrize(
        "programme",
        [
            {"bodies": [[5]]},
            {"segments": [{"tick": 1, "body": 3}]},
            {"entries": [{"name": "x"}]},
            {"gpu": GPU, "entries": [{"kind": "wait", "site": 99}]},
            {"gpu": GPU, "entries": [{"elements": 1 << 50}]},
            {"gpu": GPU, "entries": [{"waits": 1 << 50}]},
            {"gpu": {**GPU, "bandwidth": 1e-300}, "entries": [{}]},
            {"calibration": {"operators": [{"name": "x", "kernels": 1 << 50}]}},
        ],
    )
    def test_their_programme_refers_to_what_is_in_it(self, programme):
        saved = document("session")
        saved["session"]["programme"] = programme
        with pytest.raises(UnreadableInput, match="damaged session"):
            session.decode(json.dumps(saved).encode())


def test_times_that_overflow_are_refused():
    endless = TimedEntry(Entry(), device=1 << 59)
    refusal = run_and_model([[endless]] * 3, GpuRates(), USUAL)
    assert isinstance(refusal, ReplayRefusal)
    assert "longer than any run" in refusal.reason


@pytest.mark.parametrize(
    "damage",
    [
        {"steps": Steps(start=(1, 2), end=(2,))},
        {"steps": Steps(start=(5,), end=(2,))},
        {"steps": Steps(start=(1,), end=(2,), names=("a", "b"))},
        {"memory": MemoryUse(time=(1,), allocated=(1, 2))},
        {"collectives": (Collectives(name="a", start=(1,), length=()),)},
        {"prices": Prices(shortest=(0,), saved=(1,))},
        {"prices": Prices(each=(Price(costs=(0,)),))},
        {"prices": Prices(each=(Price(),), shortest=(0,), saved=())},
        {"span": 1 << 62},
    ],
)
def test_profiles_are_checked(damage):
    good = Profile(steps=Steps(start=(1,), end=(2,), busy=(1,), names=("a",)))
    assert profile.decode(profile.encode([good])) == (good,)
    with pytest.raises(UnreadableInput, match="is a damaged profile"):
        profile.decode(profile.encode([msgspec.structs.replace(good, **damage)]))


@pytest.mark.parametrize("decode", [session.decode, profile.decode, memory.decode, loading.decode])
@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b'{"format": ' + b"[" * 100_000])
def test_what_nests_without_end(decode, data):
    with pytest.raises(UnreadableInput, match="is not a saved"):
        decode(data)
