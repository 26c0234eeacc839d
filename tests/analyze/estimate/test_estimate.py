"""Sessions in, prices out: known answers, bounds, refusals."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from programmes import A100, MS, add, empty, prefetch, programme, read, send, session, synchronize
from torch import nn

from gapless.analyze import report
from gapless.analyze.estimate.timing import emptying_cost
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.recording import segments
from gapless.memory.recorder import Recorder
from gapless.model import Environment
from gapless.model.memory import MemoryRun
from gapless.model.memory_calls import CallTimes
from gapless.model.programme import Entry, Segment
from gapless.model.session import decode, encode

STEPS = 8
STEPS_PRICED = STEPS - 2  # two warm up


def report_of(*step: Entry, steps: int = STEPS, by_line: bool = False, **more):
    """The report of a run whose steps are all alike."""
    return report(session(*[list(step)] * steps, **more), by_line=by_line)


def price(report, line: int = 1):
    return next(finding.price for finding in report.findings if finding.line.line == line)


DEEP = [add(0.5)] * 40


def test_a_wait_among_deep_queues_costs_a_moment():
    report = report_of(*DEEP, read(), *DEEP)
    assert report.estimate.refused == ""
    assert report.estimate.step.likely == pytest.approx(40 * MS, rel=0.05)
    assert 5_000 < price(report).last < 60_000
    assert price(report).blocked > 10 * MS
    assert report.estimate.prices.limiter == "device"


def test_a_wait_where_the_host_is_the_limit_costs_little():
    report = report_of(*[add()] * 100, read(), *[add()] * 100)
    assert price(report).last < 40_000
    assert report.estimate.prices.limiter == "host"
    assert (report.estimate.limiter, report.estimate.sure) == ("host", 1.0)


def test_a_read_after_every_layer_costs_a_restart_of_the_device_each_time():
    layers = 20
    single = report_of(*DEEP, read(), *DEEP)
    each = report_of(*[entry for _ in range(layers) for entry in (*[add(0.5)] * 4, read())])
    assert price(each).alone == pytest.approx(layers * price(single).last, rel=0.25)
    assert price(each).waits == STEPS_PRICED * layers


def test_a_long_stretch_of_the_host_behind_a_wait_is_what_the_wait_costs():
    # The device works 10 ms, and the host, which could run ahead meanwhile, needs 3.2 ms to queue the rest.
    priced_report = report_of(add(10.0), read(), *[add()] * 200)
    assert price(priced_report).last == pytest.approx(200 * 16_000 - 200 * 2_700, rel=0.25)


def test_consecutive_waits_replace_each_other():
    report = report_of(add(10.0), read(0), read(1), read(2), *[add()] * 200)
    assert [finding.line.line for finding in report.findings] == [1]
    assert price(report).last == price(report).alone > 0.9 * report.estimate.prices.all
    lines = report_of(add(10.0), read(0), read(1), read(2), *[add()] * 200, by_line=True)
    prices = [price(lines, line) for line in (1, 2, 3)]
    assert all(price.alone < 0.05 * report.estimate.prices.all for price in prices)
    assert all(price.last > 0.5 * report.estimate.prices.all for price in prices)


def test_a_pageable_copy_costs_and_a_pinned_one_without_a_wait_does_not():
    pageable = report_of(send(0, 32 << 20), *DEEP)
    assert price(pageable).last > 0
    pinned = report_of(prefetch(32 << 20), *DEEP)
    assert pinned.findings == ()
    assert pinned.estimate.prices.all == 0


def test_an_explicit_synchronize_costs_what_a_read_costs():
    explicit = report_of(*DEEP, synchronize(), *[add()] * 100)
    value = report_of(*DEEP, read(), *[add()] * 100)
    assert price(explicit).removal == "free"
    assert price(value).removal == "deferrable"
    assert price(explicit).last == pytest.approx(price(value).last, rel=0.1)


def test_what_happens_every_other_step_costs_half_a_step():
    always = report_of(add(10.0), read(), *[add()] * 200)
    plain, waiting = [add(10.0), *[add()] * 200], [add(10.0), read(), *[add()] * 200]
    result = report(session(*[waiting, plain] * 5))
    assert price(result).last == pytest.approx(price(always).last / 2, rel=0.2)


def test_findings_of_equal_frequency_are_ordered_by_price():
    result = report_of(read(0), add(10.0), read(1), *[add()] * 200, by_line=True)
    assert [finding.line.line for finding in result.findings] == [2, 1]
    assert report(session(*[[read(0), add(10.0), read(1)]] * STEPS), priced=False).estimate is None


def test_an_interval_spans_the_likely_value():
    report = report_of(add(10.0), read(), *[add()] * 200)
    saved_time, of = price(report), report.estimate
    assert saved_time.estimated
    assert saved_time.least_last <= saved_time.last <= saved_time.most_last
    assert saved_time.least_alone <= saved_time.alone <= saved_time.most_alone
    assert of.step.least <= of.step.likely <= of.step.most
    assert of.saved.least <= of.saved.likely <= of.saved.most
    assert of.looked_at == STEPS_PRICED


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (session(), "no training step"),
        (session(*[[read()]] * 6), "launch nothing"),
        (session(*[[msgspec.structs.replace(add(1.0), name="mine::op")]] * 6), "cost is not known"),
    ],
    ids=["no steps", "nothing launched", "unknown operators"],
)
def test_no_estimate_where_it_would_not_be_honest(run, words):
    result = report(run)
    assert words in result.estimate.refused
    assert all(finding.price is None for finding in result.findings)


def test_no_estimate_of_a_step_that_was_not_recorded_whole():
    run = session(*[[add()]] * 6)
    lost = msgspec.structs.replace(run.programme, segments=run.programme.segments[:1])
    assert "recorded whole" in report(msgspec.structs.replace(run, programme=lost)).estimate.refused
    lost = msgspec.structs.replace(lost, truncated=True)
    refused = report(msgspec.structs.replace(run, programme=lost)).estimate.refused
    assert "no more than 60,000 operators" in refused


def test_steps_that_were_too_long_to_record_are_left_out_and_said():
    run = session(*[[read(), add(1.0)]] * 8)
    kept = tuple(segment for segment in run.programme.segments if segment.tick != 5)
    short = msgspec.structs.replace(run.programme, segments=kept, truncated=True)
    estimate = report(msgspec.structs.replace(run, programme=short)).estimate
    assert estimate.refused == ""
    assert estimate.looked_at == 5
    assert "1 step of more than 60,000 operators left out" in estimate.assumptions


def test_steps_with_an_evaluation_do_not_count():
    run = session(*[[add(1.0)]] * 6, [add(1.0), *[add(1.0)] * 50])
    segments = (*run.programme.segments[:-1], Segment(tick=6, body=1, evaluates=True))
    marked = msgspec.structs.replace(run.programme, segments=segments)
    estimate = report(msgspec.structs.replace(run, programme=marked)).estimate
    assert estimate.looked_at == 4
    assert estimate.device < 2 * MS


def test_a_session_without_a_programme_has_no_estimate():
    run = msgspec.structs.replace(session(*[[add(), read()]] * 6), programme=None)
    assert b"programme" not in encode(run)  # as files of earlier versions are
    result = report(decode(encode(run)))
    assert result.estimate is None
    assert result.findings[0].price is None


def test_ranks_and_threads_are_among_the_assumptions():
    run = session(*[[add(1.0)]] * 6, threads=True)
    environment = Environment(device=A100.name, emulated=True, world_size=4)
    estimate = report(msgspec.structs.replace(run, environment=environment)).estimate
    assert any("between ranks" in assumption for assumption in estimate.assumptions)
    assert any("other threads" in assumption for assumption in estimate.assumptions)


def test_several_ticks_make_one_step():
    """Two optimizers in turn: a step ends with the second."""
    run = session(*[[add(1.0)], [add(3.0)]] * 6)
    marks = tuple(
        msgspec.structs.replace(mark, name=f"Adam.step#{mark.tick % 2}", kind="optimizer")
        for mark in run.marks
    )
    estimate = report(msgspec.structs.replace(run, marks=marks)).estimate
    assert estimate.device == pytest.approx(4 * MS, rel=0.05)


def test_a_programme_is_saved_with_its_session():
    run = session(*[[add(), read(), send(1)]] * 6)
    assert decode(encode(run)) == run
    assert report(decode(encode(run))) == report(run)


items = st.one_of(
    st.sampled_from([add(), add(0.2), add(3.0), add(backward=True), add(optimizer=True)]),
    st.builds(read, st.integers(0, 3), st.integers(1, 3)),
    st.builds(send, st.integers(4, 5), st.integers(1, 1 << 24), st.sampled_from(["pageable", "pinned"])),
    st.builds(synchronize, st.just(6)),
    st.builds(prefetch),
)


@settings(deadline=None, max_examples=12)
@given(st.lists(items, max_size=25))
@example([prefetch(), send(4, 65_537, "pageable")])  # larger than what every GPU takes along
def test_laws_of_prices(step):
    report = report_of(add(), *step, steps=5)
    of = report.estimate
    assert of.refused == ""
    assert 0 <= of.prices.all <= of.step.likely
    assert of.device <= of.step.likely + 1
    for finding in report.findings:
        assert 0 <= finding.price.alone <= finding.price.blocked + 1
        assert 0 <= finding.price.last <= of.prices.all + 1
    assert of.prices.span_error == pytest.approx(0, abs=0.02)


@settings(deadline=None, max_examples=12)
@given(st.lists(items, max_size=15), st.integers(0, 15))
def test_a_longer_step_never_takes_less(step, at):
    position = min(at, len(step))
    longer = [*step[:position], add(1.0), *step[position:]]
    assert (
        report_of(add(), *longer, steps=5).estimate.step.likely
        >= report_of(add(), *step, steps=5).estimate.step.likely
    )


def test_programmes_of_bodies_that_repeat_are_small():
    run = session(*[[add(1.0), read()]] * 60)
    assert len(run.programme.bodies) == 1
    assert len(encode(run)) < 20_000
    assert programme([add()], [add()]).bodies == ((0,),)


def emptied(segments: int, times: int, calls: int = 1) -> MemoryRun:
    """A run that asks for so many whole segments again and again, and gives its cache back in between.

    It does so `calls` times in a row.
    """
    recorder = Recorder()
    for _ in range(times):
        for index in range(segments):
            recorder.alloc(index, 32 << 20)
        for index in range(segments):
            recorder.free(index)
        for _ in range(calls):
            recorder.empty_cache()
    return recorder.run()


@given(segments=st.integers(1, 5), times=st.integers(2, 6), work=st.sampled_from([0.0, 0.5]))
@settings(max_examples=12)
def test_emptying_the_cache_costs_what_the_driver_takes_to_give_and_take(segments, times, work):
    run, calls = emptied(segments, times), CallTimes()
    step = [*[add(work)] * 50, empty(), *[add(work)] * 50]
    report = report_of(*step, emptied=(run,))
    whole = segments * (calls.free + calls.malloc * (times - 1) / times)
    assert emptying_cost([run]) == pytest.approx(whole)
    assert price(report).alone >= whole
    assert price(report).alone == pytest.approx(whole, abs=0.2 * MS + 0.05 * whole)
    rest = report_of(*step[:50], *step[51:]).estimate.step.likely
    assert report.estimate.step.likely - price(report).alone == pytest.approx(rest, rel=0.05)


@given(segments=st.integers(1, 3), times=st.integers(2, 4), calls=st.integers(2, 4))
@settings(max_examples=12)
def test_a_second_emptying_in_a_row_finds_nothing_and_has_no_price(segments, times, calls):
    assert emptying_cost([emptied(segments, times, calls)]) == emptying_cost([emptied(segments, times)])


def test_a_cache_without_details_counts_as_one_segment():
    calls = CallTimes()
    assert emptying_cost([]) == calls.free + calls.malloc
    assert price(report_of(*[add()] * 100, empty())).alone >= emptying_cost([])


def test_training_whose_shapes_change_in_each_step_has_prices(monkeypatch):
    monkeypatch.setattr(segments, "MAX_ENTRIES", 60)
    with Emulator(EmulatorOptions("l4", programme=True)) as emulator:
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for step in range(8):
            loss = net(torch.ones(2, 3, 8 + step, 8 + step, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
        run = emulator.session()
    assert len(run.programme.entries) <= 60
    result = report(run)
    assert result.estimate.refused == ""
    assert [finding.price.waits for finding in result.findings if finding.name == "item-read"] == [
        result.estimate.looked_at
    ]


def test_a_full_queue_is_no_work_of_the_cpu():
    """Launches that wait in it take the GPU's time: on a slow CPU they are not slower."""
    (estimate,) = [report(session(*[1300 * [add(0.1)]] * 6)).estimate]
    assert (estimate.limiter, estimate.sure) == ("device", 1.0)
    assert estimate.host < 0.3 * estimate.step.likely
    assert estimate.step.most < 1.45 * estimate.step.likely


def test_how_long_syncs_block_the_cpu_depends_on_the_queue():
    """Launches that find it full wait, too, and then the sync waits for less: by how deep it is at least."""
    deep = report_of(*[add(0.1)] * 2000, read()).estimate
    assert deep.blocked.least < 0.4 * deep.blocked.likely < 0.4 * deep.blocked.most
    few = report_of(*[add(0.1)] * 100, read()).estimate
    assert few.blocked.least > 0.4 * few.blocked.likely
