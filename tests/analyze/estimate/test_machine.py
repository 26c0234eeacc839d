"""The imagined machine writes profiles that the replay takes for real: its unchanged replay is exact."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from programmes import A100, MS, add, prefetch, read, send, synchronize
from timeline_checks import assert_sound

from gapless.analyze.estimate.machine import MIN_QUEUE_DEPTH, TimedEntry, run_steps
from gapless.analyze.estimate.times import USUAL
from gapless.model.programme import Entry
from gapless.replay.fidelity import measure_fidelity
from gapless.replay.model import ReplayModel, build
from gapless.replay.waits import find_waits


def timed(entry: Entry, device: int = 10_000, kernels: int = 1, host: float = 16_000) -> TimedEntry:
    return TimedEntry(entry, device, kernels, host) if entry.kind == "operator" else TimedEntry(entry)


def ran(*steps, host=USUAL):
    return run_steps(steps, A100, host)


def test_a_simulated_run_is_a_sound_profile():
    done = ran([timed(add()), timed(read()), timed(send()), timed(prefetch()), timed(synchronize(1))] * 3)
    assert_sound(done.timeline)
    (rows,) = done.waits
    assert sorted(rows) == [0, 1]
    table = find_waits(done.timeline)
    listed = {*table.host.tolist(), *table.sync.tolist()}
    assert all(row in listed for rows in done.waits for site in rows.values() for row in site[::2])


def test_a_queue_that_never_empties_takes_what_the_device_takes():
    done = ran([timed(add(), 1 * MS)] * 100)
    model = build(done.timeline)
    assert isinstance(model, ReplayModel)
    assert 100 * MS <= model.replay().span <= 101 * MS
    assert done.busy == 100 * MS


def test_short_kernels_take_what_the_host_takes():
    done = ran([timed(add(), 2_000)] * 200)
    model = build(done.timeline)
    assert isinstance(model, ReplayModel)
    assert 200 * 16_000 <= model.replay().span <= 200 * 16_000 + 100_000


def test_the_queue_is_bounded():
    done = ran([timed(add(), 100_000)] * 3000)
    host = done.timeline.host
    calls = host.end[host.correlation > 0]
    starts = done.timeline.work.start
    assert (starts[:-1100] < calls[1100 : len(starts)]).all()


@pytest.mark.parametrize(
    ("reads_every", "device", "queued"),
    [(250, 100_000, False), (700, 100_000, True), (700, 2_000, False)],
)
def test_the_depth_of_queues_makes_no_difference_until_they_are_that_long(reads_every, device, queued):
    step = [*[timed(add(), device)] * reads_every, timed(read())]
    usual = run_steps([step] * 3, A100, USUAL)
    shallow = run_steps([step] * 3, A100, USUAL, MIN_QUEUE_DEPTH)
    assert (usual.queued, usual.held == shallow.held) == (queued, not queued)


def test_another_stream_runs_beside_and_an_event_holds_it():
    side, back = Entry(kind="stream", stream=1), Entry(kind="stream")
    record, held = Entry(kind="record", stream=1), Entry(kind="await")
    work = timed(add(), 5 * MS)
    beside = ran([timed(side), work, timed(back), work])
    after = ran([timed(side), work, timed(record), timed(back), timed(held), work])
    spans = [build(run.timeline).replay().span for run in (beside, after)]
    assert spans[0] < 6 * MS
    assert 10 * MS <= spans[1] < 11 * MS
    assert abs(measure_fidelity(build(after.timeline)).span_error) < 0.001


entries = st.one_of(
    st.tuples(st.just(add()), st.integers(1_000, 3 * MS), st.integers(1, 4)),
    st.tuples(st.just(add(backward=True)), st.integers(1_000, 400_000), st.integers(1, 2)),
    st.tuples(st.sampled_from([read(0), read(1, 3), send(2), send(3, 8, "pinned"), send(4, 1000), prefetch(),
                               synchronize(5)]), st.just(0), st.just(1)),
)  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(st.lists(entries, min_size=1, max_size=30))
def test_the_unchanged_replay_is_exact(step):
    timed_entries = [timed(*words) for words in step] + [timed(add())]
    model = build(run_steps([timed_entries] * 4, A100, USUAL).timeline)
    assert isinstance(model, ReplayModel)
    fidelity = measure_fidelity(model)
    few = 30_000 / model.recorded  # of short runs the replay has few occasions to fit its latencies to
    assert abs(fidelity.span_error) < 0.005 + few
    assert fidelity.drift < 0.005 + few


SLOWER = st.integers(64, 192).map(lambda number: number / 64)
"""Factors by which binary fractions are multiplied exactly."""


@settings(deadline=None, max_examples=15)
@given(st.lists(entries, min_size=1, max_size=20), SLOWER, SLOWER)
@example([(add(), 22_076, 3), (read(), 0, 1)], 65 / 64, 1.0)
@example([(add(), 22_080, 3), (read(), 0, 1)], 65 / 64, 1.0)
def test_nothing_slower_makes_a_run_shorter(step, host, device):
    def span(slow, length):
        last = (add(), 10_000, 1)
        timed_entries = [timed(e, round(d * length), k, 16_000 * slow) for e, d, k in [*step, last]]
        machine = run_steps([timed_entries] * 3, A100, USUAL.scaled(slow)).timeline
        return machine.span[1]

    usual = span(1, 1)
    assert span(host, 1) >= usual
    assert span(1, device) >= usual
