"""Real profiles, against what the JSON itself says."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from timeline_checks import assert_same, assert_sound

from gapless.trace.links import _engine_spans, _links_by_sequence
from gapless.trace.read import read, read_bytes
from gapless.trace.timeline import HostKind, Timeline, WorkKind

KINDS = {
    "cpu_op": HostKind.OPERATOR,
    "operator": HostKind.OPERATOR,
    "user_annotation": HostKind.ANNOTATION,
    "cuda_runtime": HostKind.CALL,
    "cuda_driver": HostKind.CALL,
    "runtime": HostKind.CALL,
    "python_function": HostKind.FRAME,
    "overhead": HostKind.OVERHEAD,
}
WORK = {
    "kernel": WorkKind.KERNEL,
    "gpu_memcpy": WorkKind.MEMCPY,
    "memcpy": WorkKind.MEMCPY,
    "gpu_memset": WorkKind.MEMSET,
    "memset": WorkKind.MEMSET,
}
SOME = ["9b36", "b08c", "5a2e", "c5b4", "1ef4", "b35a", "41e7"]


def events_of(path: Path) -> list[dict[str, Any]]:
    document = json.loads(gzip.decompress(path.read_bytes()))
    return document if isinstance(document, list) else document["traceEvents"]  # type: ignore[no-any-return]


def test_all_are_read_without_a_complaint(all_real: list[Path]) -> None:
    for path in all_real:
        timeline = read(path)
        assert_sound(timeline)
        assert timeline.notes == (), path.name
        assert timeline.facts.events > 0


@pytest.mark.parametrize("ending", SOME)
def test_nothing_is_lost(real: Callable[[str], Path], ending: str) -> None:
    path = real(ending)
    timeline, events = read(path), events_of(path)
    assert timeline.facts.events == len(events)
    host: Counter[tuple[int, str]] = Counter()
    work: Counter[tuple[int, str]] = Counter()
    time = 0
    for event in events:
        category = event.get("cat", "").lower()
        if category in KINDS:
            # Annotations of the oldest files stand among the operators.
            kind = HostKind.OPERATOR if category == "user_annotation" else KINDS[category]
            host[kind, event["name"]] += 1
        elif category in WORK:
            work[WORK[category], event["name"]] += 1
            time += round(event["dur"] * 1000)
    kinds = np.where(timeline.host.kind == HostKind.ANNOTATION, HostKind.OPERATOR, timeline.host.kind)
    assert host == counted(timeline, kinds, timeline.host.name)
    assert work == counted(timeline, timeline.work.kind, timeline.work.name)
    assert time == int((timeline.work.end - timeline.work.start).sum())
    assert len(timeline.syncs) == sum(event.get("cat") == "cuda_sync" for event in events)
    assert len(timeline.memory) == sum(event["name"] == "[memory]" for event in events)
    first = min(event["ts"] for event in events if event.get("cat", "").lower() in KINDS.keys() | WORK.keys())
    last = max(
        event["ts"] + event["dur"]
        for event in events
        if event.get("cat", "").lower() in KINDS.keys() | WORK.keys()
    )
    assert abs(timeline.span[1] - (last - first) * 1000) <= 1000


def counted(timeline: Timeline, kinds: Any, names: Any) -> Counter[tuple[int, str]]:
    rows = zip(kinds.tolist(), names.tolist(), strict=True)
    return Counter((kind, timeline.names[name]) for kind, name in rows)


@pytest.mark.parametrize("ending", ["9b36", "41e7", "7ad4"])
def test_pieces_make_no_difference(real: Callable[[str], Path], ending: str) -> None:
    data = gzip.decompress(real(ending).read_bytes())
    assert_same(read_bytes(data, chunk=100_003), read_bytes(data))


@pytest.mark.parametrize("ending", ["5a2e", "7ad4", "eeda", "1ef4"])
def test_numbers_give_the_links_that_flows_give(real: Callable[[str], Path], ending: str) -> None:
    timeline = read(real(ending))
    flows = set(zip(timeline.links.forward.tolist(), timeline.links.backward.tolist(), strict=True))
    links = _links_by_sequence(timeline.host, timeline.names)
    backward = _engine_spans(timeline.host, timeline.names, links.backward)
    numbers = set(zip(links.forward.tolist(), backward.tolist(), strict=True))
    assert numbers <= flows
    assert len(numbers) >= 0.97 * len(flows)


def test_backward_of_old_files_is_linked(real: Callable[[str], Path]) -> None:
    """Profiles without flows: every operator of backward with a number finds its forward."""
    timeline = read(real("9b36"))
    host = timeline.host
    numbered = set(np.flatnonzero(host.forward_thread > 0).tolist())
    assert numbered == set(timeline.links.backward.tolist())
    assert (host.sequence[timeline.links.forward] == host.sequence[timeline.links.backward]).all()
    assert len(timeline.threads) == 2


def test_annotations_hold_what_runs_in_them(real: Callable[[str], Path]) -> None:
    """The step of a profile with stacks begins inside a function and yet holds the model's operators."""
    timeline = read(real("d242"))
    step = timeline.names.index("ProfilerStep#6")
    row = int(np.flatnonzero(timeline.host.name == step)[0])
    operators = np.flatnonzero(timeline.host.kind == HostKind.OPERATOR)
    inside = sum(row in timeline.with_ancestors(operator) for operator in operators[::500].tolist())
    assert inside >= 0.95 * len(operators[::500])


@pytest.mark.parametrize(
    ("ending", "name"), [("9b36", "Tesla V100-DGXS-32GB"), ("1ef4", "AMD Radeon Graphics")]
)
def test_facts(real: Callable[[str], Path], ending: str, name: str) -> None:
    facts = read(real(ending)).facts
    assert [gpu.name for gpu in facts.gpus] == [name]
    assert facts.vendor == ("amd" if "AMD" in name else "nvidia")
    assert not facts.truncated
