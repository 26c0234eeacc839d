"""The simulated loader on cases worked by hand, its laws, and what is recommended."""

from __future__ import annotations

import math
import os

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gapless.errors import UnreadableInput
from gapless.loading import machine, predict
from gapless.loading.machine import (
    OtherLoad,
    _used_seconds,
    count_throttling,
    group_seconds,
    measure_other_load,
)
from gapless.loading.predict import MeasuredCosts
from gapless.loading.sentence import notes
from gapless.loading.simulate import PipelineCosts, simulate
from gapless.model.loading import Demand, Diagnosis, Fetch, Machine, Setting, Transfer, decode, encode

MS = 1_000_000


def having(most: float) -> Machine:
    """A machine of so many cores and nothing else on it; a part of one is what a control group allows."""
    return Machine(allowed=math.ceil(most), quota=most if most % 1 else -1.0)


def computing(each: float, step: float = 0.0, **more: float) -> PipelineCosts:
    return PipelineCosts(batches=[(each, 0.0)], step=step, **{"busy": 0.0, **more})


def waiting(each: float, step: float = 0.0, **more: float) -> PipelineCosts:
    return PipelineCosts(batches=[(0.0, each)], step=step, **{"busy": 0.0, **more})


@pytest.mark.parametrize(
    ("pipe", "most", "workers", "step", "wait"),
    [
        (computing(40, 20), 8, 0, 60, 40),  # one after the other
        (computing(40, 20), 8, 1, 40, 20),  # the worker is the longer
        (computing(40, 20), 8, 2, 20, 0),
        (computing(40, 20), 8, 4, 20, 0),
        (computing(60, 20), 8, 2, 30, 10),
        (computing(40, 10), 1, 4, 40, 30),  # four workers on one core
        (waiting(160, 20), 1, 0, 180, 160),
        (waiting(160, 20), 1, 1, 160, 140),
        (waiting(160, 20), 1, 2, 80, 60),
        (waiting(160, 20), 1, 4, 40, 20),
        (waiting(160, 20), 1, 8, 20, 0),
        (computing(30, 20, send=10), 8, 1, 40, 20),  # a worker also sends
        (computing(1, 20, receive=5), 8, 1, 25, 5),  # the training process receives between two steps
        (computing(1, 20, index=2), 8, 1, 22, 2),
        (computing(10, 20, busy=1.0), 1, 1, 30, 0),  # a busy host shares the core with its worker
        (computing(40, 40, busy=1.0), 2, 1, 40, 0),
    ],
)
def test_by_hand(pipe, most, workers, step, wait):
    run = simulate(pipe, having(most), workers, 2)
    assert run.step == pytest.approx(step, rel=1e-3)
    if pipe.busy < 1:
        assert run.wait == pytest.approx(wait, abs=0.05)


def test_the_first_batch_waits_for_its_worker():
    run = simulate(computing(40, 20, start=7, boot=5, receive=1), having(8), 2, 2)
    assert run.first == pytest.approx(7 + 7 + 40 + 1, abs=5.01)  # the first boots while the second starts
    assert simulate(computing(40, 20, start=7, boot=5), having(8), 0, 0).first == 40


def test_a_slow_batch_holds_back_those_behind_it():
    """Batches are handed over in order: with one of four ten times as long, more ahead helps."""
    uneven = PipelineCosts(batches=[(100.0, 0.0), (10.0, 0.0), (10.0, 0.0), (10.0, 0.0)], step=40.0, busy=0.0)
    few, many = (simulate(uneven, having(8), 2, prefetch, 200) for prefetch in (1, 8))
    assert many.step < few.step
    assert many.step >= 40


def test_ready_batches_are_those_asked_ahead():
    run = simulate(computing(1, 20), having(8), 2, 3)
    assert run.ready == pytest.approx(6)


def test_a_pinning_thread_works_beside_the_loop():
    run = simulate(computing(5, 20, pin=10), having(8), 1, 2)
    assert run.step == pytest.approx(20)
    alone = simulate(computing(5, 20, pin=30), having(8), 1, 2)
    assert alone.step == pytest.approx(30)


def test_receiving_waits_for_a_worker_that_computes():
    run = simulate(computing(40, 0, latency=3, receive=1), having(8), 1, 2)
    assert run.step == pytest.approx(40, rel=1e-3)  # the worker does not wait for the loop
    behind = simulate(computing(10, 30, latency=3), having(8), 2, 2)
    assert behind.step == pytest.approx(30, rel=1e-3)  # its queue is full, and so it is idle
    longer = simulate(computing(60, 20, latency=20, receive=1), having(8), 3, 4)
    assert 20 < longer.step <= 41  # at most until a worker has nothing more to do


stage = st.floats(0, 50)
pipes = st.builds(
    PipelineCosts,
    batches=st.lists(st.tuples(st.floats(0.5, 50), stage), min_size=1, max_size=6),
    step=stage,
    busy=st.floats(0, 1),
    index=st.floats(0, 1),
    send=st.floats(0, 5),
    receive=st.floats(0, 5),
)


ROUNDED = PipelineCosts(
    batches=[(3.0, 13.0)], step=12.0, busy=0.4375, index=0.0, send=1.0, receive=5.536409275721874e-170
)


@given(pipes, st.integers(0, 6), st.integers(1, 4), st.floats(0.3, 8))
@example(ROUNDED, 4, 3, 1.0)  # work left of -1e-15
@settings(max_examples=60, deadline=None)
def test_no_step_is_shorter_than_any_stage(pipe, workers, prefetch, most):
    run = simulate(pipe, having(most), workers, prefetch, 240)
    predictions = [pipe.batches[n % len(pipe.batches)] for n in range(240)]
    cpu, wait = (sum(prediction[which] for prediction in predictions) / len(predictions) for which in (0, 1))
    slack = 1.25  # the steps looked at are not whole turns of uneven batches
    least = [pipe.step, (cpu + wait) / max(workers, 1)]
    if len(pipe.batches) == 1:
        slack = 1.001
        # Work done ahead before the first step that counts may be left from then.
        least.append((cpu + pipe.step * pipe.busy) / most * 0.9)
    assert run.step * slack >= max(least)
    assert 0 <= run.wait <= run.step + 1e-6
    assert 0 <= run.ready <= workers * prefetch


@given(pipes, st.integers(1, 5), st.integers(2, 3))
@settings(max_examples=40, deadline=None)
def test_more_workers_are_never_slower_where_each_has_a_core(pipe, workers, prefetch):
    pipeline = PipelineCosts(batches=pipe.batches[:1], step=pipe.step, busy=pipe.busy, send=pipe.send)
    few, many = (simulate(pipeline, having(64), count, prefetch) for count in (workers, workers + 1))
    assert many.step <= few.step * 1.001


@given(pipes, st.integers(0, 4), st.floats(1, 3))
@settings(max_examples=40, deadline=None)
def test_time_has_no_unit_where_each_has_a_core(pipe, workers, factor):
    scaled = PipelineCosts(
        batches=[(cpu * factor, wait * factor) for cpu, wait in pipe.batches],
        step=pipe.step * factor,
        busy=pipe.busy,
        index=pipe.index * factor,
        send=pipe.send * factor,
        receive=pipe.receive * factor,
    )
    item, other = (simulate(each, having(8), workers, 2) for each in (pipe, scaled))
    assert other.step == pytest.approx(item.step * factor, rel=0.02, abs=0.02)


@pytest.mark.parametrize(
    ("pipe", "workers", "step"),
    [
        (computing(20 * MS, 10 * MS), 0, 30),
        (computing(20 * MS, 10 * MS), 1, 20),  # a core for the worker, one for the other
        (waiting(20 * MS, 10 * MS), 2, 10),
        (computing(20 * MS, 1 * MS), 8, 20 / (2 * 8 / 9)),  # eight workers have eight ninths of two cores
    ],
)
def test_beside_one_that_computes(pipe, workers, step):
    run = simulate(pipe, Machine(allowed=2, others=1.0), workers, 2)
    assert run.step == pytest.approx(step * MS, rel=0.12)


def test_a_queue_that_runs_dry_slowly_is_not_taken_for_a_full_one():
    """Forty-one for each two steps of twenty: the batches made ahead last long, but not for ever."""
    run = simulate(computing(41 * MS, 20 * MS), having(8), 2, 8)
    assert run.step == pytest.approx(20.5 * MS, rel=0.01)
    assert run.wait == pytest.approx(0.5 * MS, abs=0.2 * MS)


def measured(cpu: float, wait: float, step: float, *, allowed: int = 8, **more: object) -> MeasuredCosts:
    """A loader whose batches take so many milliseconds, on an idle machine."""
    fields = {"length": 1000, "transfer": Transfer(batches=10, receive=0.5 * MS), **more}
    return MeasuredCosts(
        machine=Machine(allowed=allowed),
        fetch=Fetch(
            items=80, batch_size=8, batch_bytes=1_000_000, batches=((int(cpu * MS), int(wait * MS)),) * 10
        ),
        demand=Demand(step=step * MS, busy=0.0),
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("of", "workers"),
    [
        (measured(58, 11, 108), 1),
        (measured(1, 0, 108), 0),  # within five percent as it is
        (measured(200, 0, 108), 2),
        (measured(0, 1000, 108), 10),
        (measured(500, 0, 108, allowed=2), 2),  # more than the cores do not help
    ],
)
def test_the_cheapest_setting_that_keeps_up(of, workers):
    best, advised = predict.choose(of, predict.predict_all(of))
    assert advised.setting.workers == workers
    assert advised.step <= best.step * 1.05
    assert advised.setting.prefetch in (0, 2)


def test_workers_are_kept_where_epochs_are_short():
    slow_start = Transfer(batches=10, start=100 * MS, boot=500 * MS)
    for length, kept in ((10, True), (100_000, False), (-1, False)):
        of = measured(58, 0, 108, length=length, transfer=slow_start)
        _, advised = predict.choose(of, predict.predict_all(of))
        assert advised.setting.arguments["persistent_workers"] is kept


def test_workers_that_cannot_start_are_not_advised():
    of = measured(200, 0, 108, workers=False)
    best, advised = predict.choose(of, predict.predict_all(of))
    assert best.setting.workers == advised.setting.workers == 0


def test_what_does_not_fit_into_memory_is_left_out():
    of = measured(0, 1000, 108)
    tight = msgspec.structs.replace(of.machine, shared=9_000_000)
    of = MeasuredCosts(
        machine=tight, fetch=of.fetch, transfer=of.transfer, demand=of.demand, length=of.length
    )
    predictions = predict.predict_all(of)
    assert {prediction.excluded for prediction in predictions} == {
        "",
        "batches in flight exceed shared memory",
    }
    _, advised = predict.choose(of, predictions)
    assert advised.setting.workers * advised.setting.prefetch <= 9


def test_memory_that_is_copied_is_copied_once():
    copies = Transfer(batches=10, private=5, growth=30.0, copied=20.0, shared=100)
    assert [copies.growth_after(count) for count in (0, 2, 5, 50)] == [0, 60, 150, 600]
    keeps = Transfer(batches=10, growth=30.0)
    assert keeps.growth_after(50) == 1500
    of = measured(1, 0, 10, length=100, transfer=copies)
    alone, two = (predict.memory(of, Setting(workers=count, prefetch=2)) for count in (1, 2))
    assert alone == 5 + 100 + 1000 + 3 * 1_000_000
    assert two == 2 * (5 + 100 + 500) + 5 * 1_000_000


@pytest.mark.parametrize(
    ("copied", "why"), [(900_000.0, "lists of Python objects"), (0.0, "what the dataset caches")]
)
def test_growing_memory_is_reported_with_its_reason(copied, why):
    of = measured(1, 0, 10)
    grows = Transfer(batches=10, growth=1e6, copied=copied, shared=10**9)
    reasons = [
        notes(Diagnosis(fetch=of.fetch, transfer=transfer, demand=of.demand, length=1000))
        for transfer in (grows, Transfer(batches=10, growth=1e4))
    ]
    assert [sum(why in note for note in each) for each in reasons] == [1, 0]


def test_no_prediction_beats_a_bound():
    of = measured(200, 100, 30, allowed=4)
    least = max(
        bound.least for bound in predict.bounds(of) if bound.stage != "receiving batches from workers"
    )
    assert all(prediction.step >= 0.99 * least for prediction in predict.predict_all(of))


def saved_measurement():
    of = measured(200, 0, 108)
    return Diagnosis(
        setting=Setting(workers=2, prefetch=2),
        machine=of.machine,
        fetch=of.fetch,
        transfer=of.transfer,
        demand=of.demand,
        length=of.length,
    )


def test_a_saved_measurement_answers_for_another_step():
    saved = saved_measurement()
    slower, faster = (predict.predict_again(saved, Demand(step=step * MS, busy=0.0)) for step in (250, 51))
    assert slower.recommended["num_workers"] == 1
    assert faster.recommended["num_workers"] == 4
    assert "take num_workers=4" in faster.sentence
    assert slower.now is not None
    assert slower.now.setting.workers == 2


@pytest.mark.parametrize("step", [250, 51])
def test_the_two_settings_alone_are_predicted_as_among_all(step):
    predicted_again = predict.predict_again(saved_measurement(), Demand(step=100.0 * MS, busy=0.0))
    two = predict.predict_under(predicted_again, Demand(step=step * MS, busy=0.0))
    among_all = predict.predict_again(predicted_again, two.demand)
    assert two.now == among_all.now
    assert two.advised.setting == predicted_again.advised.setting
    assert two.advised in (*among_all.predictions, among_all.advised)
    assert (two.predictions, two.best) == (predicted_again.predictions, predicted_again.best)


def test_a_diagnosis_comes_back_from_disk():
    predicted_again = predict.predict_again(
        Diagnosis(machine=Machine(), fetch=measured(9, 9, 9).fetch), Demand(step=5.0 * MS)
    )
    assert decode(encode(predicted_again)) == predicted_again
    with pytest.raises(UnreadableInput, match=r"x.json is JSON but not a saved diagnosis"):
        decode(b'{"format": "other"}', "x.json")
    for wrong in (b'"allowed":0', b'"others":-1', b'"together":0', b'"quota":0'):
        with pytest.raises(UnreadableInput, match=r"x\.json is a damaged diagnosis: a machine has"):
            decode(
                b'{"format":"gapless-loader","version":1,"diagnosis":{"machine":{' + wrong + b"}}}", "x.json"
            )
    with pytest.raises(UnreadableInput, match="version 99"):
        decode(b'{"format": "gapless-loader", "version": 99}')


@given(st.integers(1, 64), st.floats(0, 40), st.floats(0.3, 1), st.integers(1, 99))
def test_what_processes_get_together(allowed, other_load, together, processes):
    at = Machine(allowed=allowed, others=other_load, together=together)
    got, more = at.share(processes), at.share(processes + 1)
    assert 0 < got <= min(processes, allowed) + 1e-9
    assert got >= at.share(1) * together - 1e-9
    assert more >= got * together - 1e-9
    if not other_load and together == 1:
        assert got == min(processes, allowed)
    assert msgspec.structs.replace(at, quota=0.5).share(processes) <= 0.5


def test_equal_parts_of_what_others_leave():
    at = Machine(allowed=2, others=1.0)
    assert [at.share(count) for count in (0, 1, 2, 4)] == [0, 1, pytest.approx(4 / 3), pytest.approx(8 / 5)]
    assert Machine(allowed=4, together=0.6).share(4) == pytest.approx(2.4)
    assert Machine(allowed=4, together=0.6).share(2) == 2  # each has a core for itself


def test_computing_processes_are_recognized_by_their_allowed_cores(tmp_path):
    import os

    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else pytest.skip("Linux only")
    ticks = os.sysconf("SC_CLK_TCK")
    rows = [f"cpu{core} {2 * ticks} {ticks} {ticks} 900 900 0 0 50 0 0" for core in (*mine, 9999)]
    stat_file = tmp_path / "stat"
    stat_file.write_text("\n".join(["cpu  1 1 1 1 1 1 1", *rows, "intr 5"]))
    assert _used_seconds(stat_file) == 4.0 * len(
        mine
    )  # neither idle time nor waiting for disks, nor the cores of others
    assert _used_seconds(tmp_path / "none") == -1


STAT = "cpu  9 9 9 9 9 9 9 9\ncpu0 {} 0 10 500 7 0 0 {} 0 0\ncpu999 900 0 0 0 0 0 0 900 0 0\n"


def test_other_load_is_the_used_time_without_our_own(monkeypatch, tmp_path):
    """Two seconds of one core, of which half is ours; and what a hypervisor kept of it."""
    stat_file, now = tmp_path / "stat", [0.0]
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0}, raising=False)
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(machine.time, "perf_counter", lambda: now[0])
    own = [5.0]
    stat_file.write_text(STAT.format(100, 20))
    other_load = OtherLoad(lambda: own[0], stat_file)
    now[0] = 0.05
    assert (other_load.cores(), other_load.stolen()) == (-1.0, 0.0)  # too soon to say
    now[0], own[0] = 2.0, 6.0
    stat_file.write_text(STAT.format(300, 60))
    assert (other_load.cores(), other_load.stolen()) == (pytest.approx(0.5), pytest.approx(0.2))
    own[0] = 60.0
    assert other_load.cores() == 0.0
    stat_file.unlink()
    assert OtherLoad(lambda: 0.0, stat_file).cores() == -1.0


def test_what_a_group_of_processes_used(tmp_path):
    """Theirs, and of those that they have seen end; nobody else's."""
    group = os.getpgrp()
    for number, of in ((11, group), (12, group), (13, group + 1)):
        (tmp_path / str(number)).mkdir()
        row = f"{number} (a b) S 1 {of} 1 0 -1 0 0 0 0 0 100 20 3 4 20 0 1"
        (tmp_path / str(number) / "stat").write_text(row)
    (tmp_path / "14").mkdir()  # it has just ended
    assert group_seconds(tmp_path) == pytest.approx(2 * 127 / os.sysconf("SC_CLK_TCK"))


def test_how_often_the_cores_slowed_down_for_heat(tmp_path):
    for number, count in ((0, "3\n"), (1, "4\n"), (2, "no number")):
        folder = tmp_path / f"cpu{number}" / "thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(count)
    assert count_throttling(tmp_path) == 7
    assert count_throttling(tmp_path / "nowhere") == 0


def test_without_processor_times_the_other_load_counts_as_0(tmp_path):
    assert measure_other_load(4, 0.01, tmp_path / "absent") == 0
