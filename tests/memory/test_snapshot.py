"""Snapshots read: what is in them, what is refused."""

from __future__ import annotations

import base64
import copyreg
import gzip
import json
import pickle
import pickletools
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.errors import UnreadableInput
from gapless.memory.simulate import Simulation
from gapless.memory.sizes import MIB
from gapless.memory.snapshot import read, read_bytes, read_value
from gapless.model.memory import ALLOC, DEFER, DONE, EMPTY, FAILED, FREE, RETIRE, STEP, MemoryRun

BASE = 0x7F12_0000_0000
CALL = [{"name": "forward", "filename": "/home/me/model.py", "line": 12}]
EMPTIED = [{"name": "empty_cache", "filename": "/x/site-packages/torch/cuda/memory.py", "line": 222}]


def entry(action: str, addr: int = BASE, size: int = 20 * MIB, stream: int = 0, **more) -> dict:
    return {"action": action, "addr": addr, "size": size, "stream": stream, **more}


def segment(*blocks: dict, address: int = BASE, **more) -> dict:
    total = sum(block["size"] for block in blocks)
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "stream": 0,
        "segment_type": "large" if total > 2 * MIB else "small",
        "blocks": list(blocks),
        **more,
    }


def block(size: int, state: str = "inactive", requested: int = 0, **more) -> dict:
    return {"size": size, "state": state, "requested_size": requested or size, **more}


def snapshot(segments: list, trace: list, **more) -> dict:
    return {"segments": segments, "device_traces": [trace], **more}


def run(segments: list, trace: list, **more) -> MemoryRun:
    (read_run,) = read_value(snapshot(segments, trace, **more), "it")
    return read_run


def test_requests_without_what_came_of_them():
    recorded_run = run(
        [segment(block(20 * MIB))],
        [
            entry("segment_alloc", frames=CALL),
            entry("alloc", size=5 * MIB, frames=CALL),
            entry("free_requested", size=5 * MIB),
            entry("free_completed", size=5 * MIB),
            entry("snapshot", 0, 0),
        ],
    )
    assert recorded_run.action == (ALLOC, FREE)
    assert recorded_run.size == (5 * MIB, 0)
    assert recorded_run.line(recorded_run.place[0]).where == "/home/me/model.py:12"
    assert recorded_run.start == ()
    assert (recorded_run.recorded.mallocs, recorded_run.recorded.peak_reserved) == (1, 20 * MIB)


def test_earlier_memory_is_found_by_replaying_backwards():
    # Recording begins with two blocks in use. One is freed; what it takes is asked for again, and more.
    recorded_run = run(
        [
            segment(
                block(8 * MIB, "active_allocated"),
                block(4 * MIB, "active_allocated", frames=CALL),
                block(8 * MIB),
            )
        ],
        [
            entry("free_requested", BASE, 6 * MIB),
            entry("free_completed", BASE, 6 * MIB),
            entry("alloc", BASE, 8 * MIB),
        ],
    )
    (home,) = recorded_run.start
    # The 2 MiB behind the first block were free: it asked for 6 MiB and got no more.
    assert [(b.size, b.ident >= 0) for b in home.blocks] == [
        (6 * MIB, True),
        (2 * MIB, False),
        (4 * MIB, True),
        (8 * MIB, False),
    ]


def test_slack_belongs_to_the_block_before_it():
    recorded_run = run(
        [segment(block(20 * MIB))],
        [entry("free_requested", BASE, 19 * MIB + 512), entry("free_completed", BASE, 19 * MIB + 512)],
    )
    assert [b.size for b in recorded_run.start[0].blocks] == [20 * MIB]


def test_slack_between_blocks_that_were_freed_one_after_the_other():
    # Of 40 MiB the first had 10 and 700 kB of slack, the second the rest.
    gap = 700 * 1024
    trace = []
    for address, size in ((BASE + 10 * MIB + gap, 30 * MIB - gap), (BASE, 10 * MIB)):
        trace += [entry("free_requested", address, size), entry("free_completed", address, size)]
    recorded_run = run([segment(block(40 * MIB))], trace)
    assert [b.size for b in recorded_run.start[0].blocks] == [10 * MIB + gap, 30 * MIB - gap]


def test_segments_that_were_given_back():
    recorded_run = run([], [entry("segment_free", frames=EMPTIED)])
    assert recorded_run.action == (EMPTY,)
    assert recorded_run.start[0].size == 20 * MIB
    assert (recorded_run.recorded.frees, recorded_run.recorded.retries) == (1, 0)
    assert Simulation(recorded_run).go().outcome().frees == 1


def test_memory_given_back_for_a_request_is_a_retry():
    recorded_run = run(
        [segment(block(40 * MIB, "active_allocated"), address=BASE + 64 * MIB)],
        [
            entry("segment_alloc", frames=CALL),
            entry("alloc", frames=CALL),
            entry("free_requested", frames=CALL),
            entry("free_completed", frames=CALL),
            entry("segment_free", frames=CALL),
            entry("segment_alloc", BASE + 64 * MIB, 40 * MIB, frames=CALL),
            entry("alloc", BASE + 64 * MIB, 40 * MIB, frames=CALL),
        ],
    )
    assert recorded_run.action == (ALLOC, FREE, ALLOC)
    assert recorded_run.recorded.retries == 1
    assert (recorded_run.recorded.floor, recorded_run.recorded.ceiling, recorded_run.limit) == (
        40 * MIB,
        60 * MIB,
        40 * MIB,
    )
    outcome = Simulation(recorded_run).go().outcome()
    assert (outcome.retries, outcome.mallocs, outcome.frees) == (1, 2, 1)


def test_a_release_at_the_very_beginning_may_be_the_rest_of_one():
    recorded_run = run(
        [segment(block(40 * MIB, "active_allocated"), address=BASE + 64 * MIB)],
        [
            entry("segment_free", frames=CALL),
            entry("segment_free", BASE + 32 * MIB, frames=CALL),
            entry("segment_alloc", BASE + 64 * MIB, 40 * MIB, frames=CALL),
            entry("alloc", BASE + 64 * MIB, 40 * MIB, frames=CALL),
        ],
    )
    assert recorded_run.action == (EMPTY, ALLOC)
    assert (recorded_run.recorded.retries, recorded_run.recorded.frees, recorded_run.limit) == (0, 2, -1)


def test_without_frames_a_request_that_would_have_been_served_is_no_reason():
    # The 60 MiB that were given back would have served the 40: the user emptied the cache.
    trace = [entry("segment_alloc", size=60 * MIB), entry("alloc", size=60 * MIB)]
    trace += [entry("free_requested", size=60 * MIB), entry("free_completed", size=60 * MIB)]
    trace += [entry("segment_free", size=60 * MIB)]
    trace += [entry("segment_alloc", size=40 * MIB), entry("alloc", size=40 * MIB)]
    assert run([segment(block(40 * MIB, "active_allocated"))], trace).recorded.retries == 0
    for trace_entry in trace[-2:]:
        trace_entry["size"] = 70 * MIB
    assert run([segment(block(70 * MIB, "active_allocated"))], trace).recorded.retries == 1


def test_the_cache_emptied_by_hand_and_then_a_request():
    recorded_run = run(
        [segment(block(40 * MIB, "active_allocated"), address=BASE + 64 * MIB)],
        [
            entry("segment_free", frames=EMPTIED),
            entry("segment_alloc", BASE + 64 * MIB, 40 * MIB, frames=CALL),
            entry("alloc", BASE + 64 * MIB, 40 * MIB, frames=CALL),
        ],
    )
    assert recorded_run.action == (EMPTY, ALLOC)
    assert (recorded_run.recorded.retries, recorded_run.limit) == (0, -1)


def test_a_tensor_that_waits_for_another_stream():
    trace = [
        entry("segment_alloc", size=16 * MIB),
        entry("alloc", size=16 * MIB),
        entry("free_requested", size=16 * MIB),
        entry("segment_alloc", BASE + 32 * MIB, 16 * MIB),
        entry("alloc", BASE + 32 * MIB, 16 * MIB),
        entry("free_completed", size=16 * MIB),
        entry("alloc", size=16 * MIB),
    ]
    used = block(16 * MIB, "active_allocated")
    recorded_run = run([segment(used), segment(used, address=BASE + 32 * MIB)], trace)
    assert recorded_run.action == (ALLOC, DEFER, ALLOC, DONE, ALLOC)
    replay = Simulation(recorded_run).go()
    assert (replay.outcome().mallocs, replay.placed) == (2, 3)


def test_one_that_still_waits_at_the_end():
    trace = [entry("segment_alloc"), entry("alloc"), entry("free_requested")]
    for state in ("active_pending_free", "active_awaiting_free"):
        recorded_run = run([segment(block(20 * MIB, state))], trace)
        assert recorded_run.action == (ALLOC, DEFER)


def test_a_request_that_failed():
    used = segment(block(20 * MIB, "active_allocated"))
    recorded_run = run([used], [entry("oom", 0, 40 * MIB, device_free=8 * MIB, frames=CALL)])
    assert recorded_run.action == (FAILED,)
    assert (recorded_run.limit, recorded_run.recorded.ooms, recorded_run.recorded.retries) == (28 * MIB, 1, 1)
    outcome = Simulation(recorded_run).go().outcome()
    assert (outcome.failures, outcome.retries, outcome.shortage) == (1, 1, None)
    assert outcome.failure.size == 40 * MIB
    assert outcome.failure.unreserved == 8 * MIB
    assert outcome.failure.line.line == 12


def test_what_failed_bounds_the_memory_that_there_was():
    # 8 MiB are free and a request for 5 fails: it wants a segment of 20.
    used = segment(block(20 * MIB, "active_allocated"))
    recorded_run = run([used], [entry("oom", 0, 5 * MIB, device_free=8 * MIB)])
    assert (recorded_run.recorded.ceiling, recorded_run.limit) == (40 * MIB, 28 * MIB)
    # 100 are free and it fails all the same: something else forbids it.
    recorded_run = run([used], [entry("oom", 0, 5 * MIB, device_free=100 * MIB)])
    assert recorded_run.limit == 40 * MIB - 1
    assert Simulation(recorded_run).go().outcome().failures == 1


def test_blocks_as_torch_two_had_them():
    held = {
        "size": 20 * MIB,
        "state": "active_allocated",
        "history": [{"real_size": 19 * MIB, "frames": CALL}],
    }
    old = segment(held)
    del old["segment_type"]
    recorded_run = run([old], [])
    assert recorded_run.start[0].blocks[0].requested == 19 * MIB
    assert recorded_run.line(recorded_run.start[0].blocks[0].place).line == 12
    assert not recorded_run.start[0].small


def test_the_memory_of_a_graph():
    private = segment(block(20 * MIB), segment_pool_id=(0, 1))
    recorded_run = run(
        [private], [entry("segment_alloc"), entry("alloc"), entry("free_requested"), entry("free_completed")]
    )
    assert recorded_run.pools == ("", "0,1")
    assert recorded_run.pool == (1, 0)
    assert Simulation(recorded_run).go().allocator.small.private is None


def test_a_graphs_memory_given_back_when_it_is_gone():
    trace = [
        entry("free_requested", segment_pool_id=(0, 1)),
        entry("free_completed", segment_pool_id=(0, 1)),
        entry("segment_free", frames=EMPTIED, segment_pool_id=(0, 1)),
    ]
    recorded_run = run([], trace)
    assert RETIRE in recorded_run.action
    assert recorded_run.start[0].pool == 1


def test_expandable_segments():
    trace = [
        entry("segment_map", BASE, 20 * MIB),
        entry("alloc", BASE, 12 * MIB),
        entry("segment_map", BASE + 20 * MIB, 20 * MIB),
        entry("alloc", BASE + 12 * MIB, 20 * MIB),
        entry("free_requested", BASE + 12 * MIB, 20 * MIB),
        entry("free_completed", BASE + 12 * MIB, 20 * MIB),
        entry("segment_unmap", BASE + 20 * MIB, 20 * MIB, frames=EMPTIED),
    ]
    final = segment(block(12 * MIB, "active_allocated"), block(8 * MIB), is_expandable=True)
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    recorded_run = run([final], trace, allocator_settings=conf)
    assert recorded_run.start == ()
    assert (recorded_run.recorded.maps, recorded_run.recorded.unmaps) == (2, 1)
    replay = Simulation(recorded_run).go()
    outcome = replay.outcome()
    assert (outcome.maps, outcome.unmaps, outcome.final_reserved) == (2, 1, 20 * MIB)
    assert replay.placed == 2


def test_recording_that_began_between_mapped_pages():
    # 60 MiB are mapped, 20 to 40 are unmapped, and mapped again.
    gap = entry("segment_unmap", BASE + 20 * MIB, 20 * MIB, frames=EMPTIED)
    final = segment(
        block(20 * MIB, "active_allocated"),
        block(20 * MIB),
        block(20 * MIB, "active_allocated"),
        is_expandable=True,
    )
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    back = [entry("segment_map", BASE + 20 * MIB, 20 * MIB), entry("alloc", BASE + 20 * MIB, 20 * MIB)]
    back += [entry("free_requested", BASE + 20 * MIB, 20 * MIB)]
    back += [entry("free_completed", BASE + 20 * MIB, 20 * MIB)]
    recorded_run = run([final], [gap, *back], allocator_settings=conf)
    (home,) = recorded_run.start
    assert [(b.size, b.ident >= 0) for b in home.blocks] == [
        (20 * MIB, True),
        (20 * MIB, False),
        (20 * MIB, True),
    ]
    replay = Simulation(recorded_run).go()
    assert (replay.outcome().maps, replay.outcome().unmaps, replay.placed) == (1, 1, 1)


def test_recording_that_began_with_a_hole():
    final = segment(
        block(20 * MIB, "active_allocated"),
        block(20 * MIB, "active_allocated"),
        block(20 * MIB, "active_allocated"),
        is_expandable=True,
    )
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    fill = [entry("segment_map", BASE + 20 * MIB, 20 * MIB), entry("alloc", BASE + 20 * MIB, 20 * MIB)]
    recorded_run = run([final], fill, allocator_settings=conf)
    assert [segment.size for segment in recorded_run.start] == [20 * MIB, 20 * MIB]
    replay = Simulation(recorded_run).go()
    assert (replay.outcome().maps, replay.placed) == (1, 1)


def test_steps_by_the_optimizers_marks():
    times = [entry("alloc", BASE, 20 * MIB, time_us=100), entry("snapshot", 0, 0, time_us=300)]
    marks = [
        {"name": "Optimizer.step#AdamW.step", "stage": stage, "device": 0, "time_us": at}
        for stage, at in (("START", 150), ("END", 200))
    ]
    recorded_run = run([segment(block(20 * MIB, "active_allocated"))], times, external_annotations=marks)
    assert recorded_run.action == (ALLOC, STEP)
    assert recorded_run.time[0] == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": True},
        None,
    ],
)
def test_expandable_segments_are_detected_from_text_value_or_history(settings):
    trace = [entry("segment_map", BASE, 20 * MIB), entry("alloc", BASE, 12 * MIB)]
    final = segment(block(12 * MIB, "active_allocated"), block(8 * MIB), is_expandable=True)
    recorded_run = run([final], trace, **({} if settings is None else {"allocator_settings": settings}))
    assert recorded_run.settings == "expandable_segments:True"
    assert Simulation(recorded_run).go().outcome().maps == recorded_run.recorded.maps == 1


def test_settings_are_those_of_the_run():
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    assert run([], [entry("segment_free")], allocator_settings=conf).settings == "max_split_size_mb:64"
    broken = run([], [entry("segment_free")], allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": "x:1"})
    assert "cannot be read" in broken.notes[0]
    assert "does not contain its settings" in run([], [entry("segment_free")]).notes[0]


def test_unknown_entries_are_counted_and_left_out():
    recorded_run = run([], [entry("segment_free"), {"action": "moved_to_moon"}, {"action": "moved_to_moon"}])
    assert "2 entries of the unknown kind 'moved_to_moon' were skipped" in recorded_run.notes


def test_every_device_has_its_own_run():
    trace = [entry("segment_free")]
    value = {"segments": [], "device_traces": [trace, [], [*trace, entry("segment_free", BASE + 64 * MIB)]]}
    assert [(read_run.device, read_run.recorded.frees) for read_run in read_value(value, "it")] == [
        (0, 1),
        (2, 2),
    ]


def test_a_cache_emptied_where_each_segment_tells_who_made_it():
    """``context="alloc"``: what is given back has the frames of its making, as the next request may have."""
    other = [{**CALL[0], "line": 30}]
    recorded_run = run(
        [segment(block(40 * MIB, "active_allocated"), address=BASE + 128 * MIB)],
        [
            *(entry(action, BASE, frames=CALL) for action in ("segment_alloc", "alloc")),
            *(entry(action, BASE + 64 * MIB, frames=other) for action in ("segment_alloc", "alloc")),
            *(entry(action, BASE, frames=CALL) for action in ("free_requested", "free_completed")),
            *(
                entry(action, BASE + 64 * MIB, frames=other)
                for action in ("free_requested", "free_completed")
            ),
            entry("segment_free", BASE, frames=CALL),
            entry("segment_free", BASE + 64 * MIB, frames=other),
            *(
                entry(action, BASE + 128 * MIB, 40 * MIB, frames=CALL)
                for action in ("segment_alloc", "alloc")
            ),
        ],
    )
    assert recorded_run.action == (ALLOC, ALLOC, FREE, FREE, EMPTY, ALLOC)
    assert recorded_run.recorded.retries == 0


# Files --------------------------------------------------------------------------------------------

GOOD = snapshot([segment(block(20 * MIB))], [entry("segment_alloc", frames=CALL)])


def test_a_pickle_a_page_and_json(tmp_path):
    data = pickle.dumps(GOOD)
    (plain,) = read_bytes(data, "it")
    page = "<html><script>import {add_local_files} from 'https://x/MemoryViz.js'\nconst local_files = "
    page += json.dumps([{"name": "s", "base64": base64.b64encode(data + b"\0").decode()}])
    assert read_bytes(b"\n" + page.encode(), "it") == (plain,)
    assert read_bytes(json.dumps(GOOD).encode(), "it") == (plain,)
    assert read_bytes(gzip.compress(data), "it") == (plain,)
    path = tmp_path / "s.pickle"
    path.write_bytes(data)
    assert read(str(path))[0].path == str(path)


class Harm:
    def __reduce__(self):
        return print, ("harm done",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_imported(capsys, protocol):
    for value in (Harm(), {"segments": [], "device_traces": [Harm()]}, OrderedDict(a=1)):
        with pytest.raises(UnreadableInput, match="a pickle that imports") as caught:
            read_bytes(pickle.dumps(value, protocol), "s.pickle")
        assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def test_nothing_is_imported_by_an_extension_either():
    copyreg.add_extension("builtins", "print", 0xABCD)
    try:
        data = pickle.dumps(print, 2)
        assert any(op.name.startswith("EXT") for op, _, _ in pickletools.genops(data))
        with pytest.raises(UnreadableInput, match="imports"):
            read_bytes(data, "s.pickle")
    finally:
        copyreg.remove_extension("builtins", "print", 0xABCD)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not a pickle, or is damaged"),
        (b"hello", "is not a pickle, or is damaged"),
        (b"\x1f\x8bhello", "is compressed and damaged"),
        (b"\x80\x04\x95", "is not a pickle, or is damaged"),
        (b"{", "is damaged JSON"),
        (pickle.dumps(3), "is not a memory snapshot: it has no segments and device_traces"),
        (pickle.dumps({"segments": []}), "is not a memory snapshot"),
        (pickle.dumps([]), "it has no segments and device_traces"),
        (pickle.dumps({"segments": [], "device_traces": []}), "is empty"),
        (pickle.dumps({"segments": {}, "device_traces": []}), "its segments are not a list"),
        (pickle.dumps({"segments": [], "device_traces": 3}), "its device_traces are not lists"),
        (pickle.dumps({"segments": [3], "device_traces": []}), "a segment is incomplete"),
        (pickle.dumps({"segments": [], "device_traces": [[{}]]}), "an entry of the trace has no action"),
        (pickle.dumps(snapshot([], [{"action": "alloc"}])), "an entry (alloc) is incomplete"),
        (pickle.dumps(snapshot([], [entry("alloc")])), "is at the wrong place (entry 0 of 1)"),
        (pickle.dumps(snapshot([segment(block(9), address=0) | {"total_size": 5}], [])), "size differs from"),
        (b"<html>MemoryViz</html>", "is not a pickle"),
    ],
)
def test_other_files_are_refused_as_snapshots_in_one_line(data, said):
    with pytest.raises(UnreadableInput) as caught:
        read_bytes(data, "s.pickle")
    assert said in str(caught.value)
    assert "s.pickle" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trace_that_does_not_lead_to_the_end_is_refused():
    final = [segment(block(10 * MIB, "active_allocated"))]
    with pytest.raises(UnreadableInput, match=r"s.pickle cannot be replayed: .* \(entry 0 of 1\)"):
        read_value(snapshot(final, [entry("alloc", size=20 * MIB)]), "s.pickle")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255), st.integers(0, 3000))
def test_a_damaged_pickle_is_read_or_refused(at, change, length):
    data = bytearray(pickle.dumps(GOOD))
    data[at % len(data)] ^= change
    assert "\n" not in refusal(bytes(data[: max(length, 1)] if length < len(data) else data))


def refusal(data: bytes) -> str:
    """Why `data` is refused; "" where it is read. Any other error is a defect."""
    try:
        read_bytes(data, "s.pickle")
    except UnreadableInput as error:
        return str(error)
    return ""
