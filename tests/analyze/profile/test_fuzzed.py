"""Whatever a file holds, the whole way from it to the report ends in a report or in one clear error."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import training

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.profile_report import report_run
from gapless.errors import UnreadableInput
from gapless.render import Style, renderer
from gapless.trace.read import read_bytes

DOCUMENTS = [training(dialect, steps=3).document() for dialect in ("new", "middle", "old")]  # type: ignore[arg-type]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(
        ["X", "M", "i", "kernel", "cuda_runtime", "cpu_op", "cudaStreamSynchronize", "ProfilerStep#1"]
    ),
)
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args")
ARGS = (
    "External id",
    "correlation",
    "device",
    "stream",
    "bytes",
    "Call stack",
    "Sequence number",
    "Total Reserved",
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["drop", "double", "swap", "key", "unkey", "arg", "time"]),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
        VALUES,
    ),
    max_size=12,
)


def changed(document: dict[str, Any], changes: list[tuple[str, int, int, Any]]) -> bytes:
    deepcopy = copy.deepcopy(document)
    events: list[dict[str, Any]] = deepcopy["traceEvents"]
    for kind, number, other, value in changes:
        if not events:
            break
        at, second = number % len(events), other % len(events)
        event = events[at]
        if kind == "drop":
            del events[at]
        elif kind == "double":
            events.insert(second, copy.deepcopy(event))
        elif kind == "swap":
            events[at], events[second] = events[second], event
        elif kind == "key":
            event[KEYS[other % len(KEYS)]] = value
        elif kind == "unkey":
            event.pop(KEYS[other % len(KEYS)], None)
        elif kind == "time":
            event["ts"] = other * 7 % 4000
            event["dur"] = number * 13 % 4000
        elif isinstance(event.get("args"), dict):
            event["args"][ARGS[other % len(ARGS)]] = value
    return json.dumps(deepcopy).encode()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(DOCUMENTS), CHANGES)
def test_changed_profiles_end_in_a_report_or_an_error(document, changes):
    try:
        profile = build_profile(read_bytes(changed(document, changes)), priced=True)
    except UnreadableInput:
        return
    assert sum(cost.idle for cost in profile.costs) == profile.idle
    text = renderer("text")(report_run([profile]), Style(unfold=True))
    assert text.endswith("\n")
    assert renderer("json")(report_run([profile]), Style()).endswith("}\n")
