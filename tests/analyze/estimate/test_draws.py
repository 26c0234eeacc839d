"""Intervals: laws of the drawn machines, and small programmes reckoned by hand."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest
from msgspec.structs import replace as replace_
from programmes import A100, MS, add, prefetch, read, send, session, synchronize

from gapless.analyze import report
from gapless.analyze.estimate import draws, machine, timing
from gapless.analyze.estimate.collective_times import CommunicationTime
from gapless.analyze.estimate.draws import (
    COMMON_VARIANCE,
    DRAWS,
    FAMILY_VARIANCE,
    HIGH_QUANTILE,
    TimeUncertainty,
    draw_machines,
    interval,
)
from gapless.analyze.estimate.machine import TimedEntry, run_steps
from gapless.analyze.estimate.spread import UNPROVEN_SPREAD
from gapless.analyze.estimate.times import USUAL
from gapless.analyze.estimate.timing import Times
from gapless.model.estimate import Range
from gapless.model.programme import Entry, HostSpeed
from gapless.replay import model as replay_model
from gapless.replay import price
from gapless.replay.change import NO_CHANGE, ReplayChange, ReplayPace
from gapless.replay.model import build
from gapless.replay.path import find_limiter
from gapless.replay.price import group_savings, group_savings_under, price_groups

NORMAL = 1.2816
"""The deviate that nine in ten normal ones lie below."""
HOST = 100 * [add()]
GPU = 40 * [add(1.0)]
PLAIN = {
    "deep queues": [*40 * [add(0.5)], read(), *40 * [add(0.5)]],
    "the host": [*HOST, read(), *HOST],
    "a tail of the host": [add(10.0), read(), *200 * [add()]],
    "a read after each": 10 * [*4 * [add(0.5)], read()],
    "copies": [send(0, 32 << 20), *40 * [add(0.1)], read(1), prefetch(8 << 20)],
    "autograd": [*30 * [add(0.02)], *60 * [add(0.02, backward=True)], read(), synchronize(1)],
    "a full queue": [*1500 * [add(0.02)], read()],
}


def estimated(
    *step, host: float = 0.0, device: float = 0.0, unproven: float = 0.0, late: float = 0.0, monkeypatch
):
    """The report where the host and the operators are so uncertain, and nothing else."""
    monkeypatch.setattr(draws, "LATENCY_SPREAD", late)
    monkeypatch.setattr(timing, "UNMEASURED_HOST_SPREAD", host)
    monkeypatch.setattr(timing, "COPY_SPREAD", device)
    monkeypatch.setattr(timing, "time_spread", lambda work, gpu, time: device)
    monkeypatch.setattr(timing, "unproven_spread", lambda work, dtype, gpu, time: unproven)
    return report(session(*8 * [list(step)]))


@pytest.mark.parametrize("plain", sorted(PLAIN))
@pytest.mark.parametrize(
    ("host", "device", "late"), [(0.4, 1.0, 1.0), (1.0, 2.0, 0.5), (2.5, 0.5, 3.0), (1.0, 1.0, 2.0)]
)
def test_a_replay_at_another_pace_is_the_machine_of_that_pace(plain, host, device, late, monkeypatch):
    """Against a second road: the programme run again with every time multiplied."""
    times = Times(A100)
    timed = [[times.add_times(entry) for entry in PLAIN[plain]]] * 4
    model = build(run_steps(timed, A100, USUAL).timeline)
    pace = ReplayPace(host, np.full(len(model.timeline.work), device), late)
    slow = USUAL.scaled(host)

    def again(timed: TimedEntry) -> TimedEntry:
        if timed.entry.kind != "operator":
            return timed
        return replace(
            timed, device=round(timed.device * device), host=slow.operator_time(timed.entry, timed.kernels)
        )

    for name in ("DEFAULT_UNBLOCKED_NS", "DEFAULT_UNBLOCKED_DEVICE_NS"):
        monkeypatch.setattr(machine, name, round(host * getattr(machine, name)))
    for name in ("DEFAULT_LAUNCH_NS", "DEFAULT_RETURN_NS"):
        monkeypatch.setattr(machine, name, round(late * getattr(machine, name)))
    duration = machine.copies.duration
    monkeypatch.setattr(machine.copies, "duration", lambda *words: device * duration(*words))
    other = build(run_steps([[again(entry) for entry in step] for step in timed], A100, slow).timeline)
    assert model.replay(ReplayChange(pace=pace)).span == pytest.approx(other.replay().span, rel=0.005)


def test_savings_of_an_unchanged_machine_are_its_prices():
    times = Times(A100)
    entries = [add(10.0), read(0), *HOST, read(1)]
    ran = run_steps([[times.add_times(entry) for entry in entries]] * 4, A100, USUAL)
    model = build(ran.timeline)
    rows = {site: [row for step in ran.waits for row in step[site]] for site in (0, 1)}
    prices, drawn = price_groups(model, rows), group_savings(model, rows, NO_CHANGE)
    assert (drawn.span, drawn.all, drawn.limiter) == (prices.span, prices.all, prices.limiter)
    assert drawn.alone == {key: price.alone for key, price in prices.each.items()}
    assert drawn.last == {key: price.last for key, price in prices.each.items()}
    ones = ReplayPace(1.0, np.ones(len(model.timeline.work)))
    assert group_savings(model, rows, ReplayChange(pace=ones)) == drawn


MACHINES = [(1.0, 1.0, 1.0), (2.0, 1.0, 1.0), (0.5, 1.5, 3.0), (1.0, 4.0, 0.2)]


def many_groups(count: int = 12):
    """A model with a wait at each of so many sites, the rows of each, and changes."""
    times = Times(A100)
    entries = [entry for site in range(count) for entry in (add(10.0 + site), read(site), *HOST)]
    ran = run_steps([[times.add_times(entry) for entry in entries]] * 3, A100, USUAL)
    model = build(ran.timeline)
    rows = {site: [row for step in ran.waits for row in step[site]] for site in range(count)}
    ones = np.ones(len(model.timeline.work))
    return (
        model,
        rows,
        [ReplayChange(pace=ReplayPace(host, device * ones, late)) for host, device, late in MACHINES],
    )


@pytest.mark.parametrize("name", PLAIN)
def test_bounds_name_the_limiter_that_the_critical_path_names(name, monkeypatch):
    times = Times(A100)
    ran = run_steps([[times.add_times(entry) for entry in PLAIN[name]]] * 3, A100, USUAL)
    model = build(ran.timeline)
    ones = np.ones(len(model.timeline.work))
    every = frozenset(model.waits.host.tolist())
    outcomes = [
        model.replay(ReplayChange(without=without, pace=ReplayPace(host, device * ones, late)))
        for host, device, late in [*MACHINES, (0.1, 10.0, 1.0), (10.0, 0.1, 1.0)]
        for without in (frozenset(), every)
    ]
    quick = [find_limiter(outcome) for outcome in outcomes]
    monkeypatch.setattr("gapless.replay.path._limiter_by_bounds", lambda outcome, busy: None)
    assert quick == [find_limiter(outcome) for outcome in outcomes]


@pytest.mark.parametrize("together", [1, 1 << 10, 1 << 20])
def test_machines_that_are_replayed_together_say_what_each_says_alone(monkeypatch, together):
    model, rows, changes = many_groups()
    alone = [
        {key: model.replay(change).span - replayed(model, rows[key], change) for key in rows}
        for change in changes
    ]
    monkeypatch.setattr(replay_model, "MAX_MOMENTS_TOGETHER", together)
    savings = group_savings_under(model, rows, changes)
    assert [profile.span for profile in savings] == [model.replay(change).span for change in changes]
    assert [estimate.limiter for estimate in savings] == [
        find_limiter(model.replay(change)) for change in changes
    ]
    assert [price.alone for price in savings] == alone


def test_waits_that_are_left_out_together_save_what_each_saves_alone():
    model, rows, changes = many_groups()
    alone = [model.marked(group) for group in rows.values()]
    sets = [alone[0] & False, *alone, *(alone[0] | marks for marks in alone), np.logical_or.reduce(alone)]
    assert len(sets) > replay_model.MIN_RUNS_TOGETHER
    for change in (NO_CHANGE, *changes):
        spans = model.spans(change)
        assert spans(sets) == [spans([marks])[0] for marks in sets]


def replayed(model, rows, change):
    return model.spans(change)([model.marked(rows)])[0]


def test_of_too_many_groups_the_dearest_are_replayed_and_the_others_follow(monkeypatch):
    model, rows, changes = many_groups()
    whole, likely = group_savings_under(model, rows, changes), price_groups(model, rows).each
    monkeypatch.setattr(price, "MAX_MOMENTS_REPLAYED", 1)
    some = group_savings_under(model, rows, changes, likely)
    dearest = sorted(rows, key=lambda key: (likely[key].last, likely[key].alone))[
        -price.MIN_GROUPS_REPLAYED :
    ]
    for savings, other in zip(some, whole, strict=True):
        assert (savings.span, savings.all, savings.limiter) == (other.span, other.all, other.limiter)
        assert {key: savings.alone[key] for key in dearest} == {key: other.alone[key] for key in dearest}
        assert list(savings.alone) == list(savings.last) == list(rows)
        assert sum(savings.alone.values()) == pytest.approx(sum(other.alone.values()), rel=0.2)


def test_a_certain_time_has_no_interval(monkeypatch):
    report = estimated(*GPU, synchronize(), *HOST, monkeypatch=monkeypatch)
    of, price = report.estimate, report.findings[0].price
    assert of.step.least == pytest.approx(of.step.most, abs=2)
    assert of.saved.least == pytest.approx(of.saved.most, abs=2)
    assert price.least_last == pytest.approx(price.most_last, abs=2)
    assert of.sure == 1.0


def test_a_read_in_a_step_that_the_host_limits_costs_latencies(monkeypatch):
    """By hand: a launch, eight bytes, a return; a share of it that is the CPU's own is as certain as that. At
    most the CPU's time for the copy goes, too."""
    report = estimated(*HOST, read(), *HOST, late=0.4, monkeypatch=monkeypatch)
    price = report.findings[0].price
    most = price.most_last - USUAL.forward
    assert most / price.last == pytest.approx(exp(0.4 * NORMAL), rel=0.25)
    assert price.last / price.least_last == pytest.approx(exp(0.4 * NORMAL), rel=0.25)


def test_a_step_that_the_host_limits_is_as_uncertain_as_the_host(monkeypatch):
    step = estimated(*HOST, *HOST, host=0.3, monkeypatch=monkeypatch).estimate.step
    assert step.most / step.likely == pytest.approx(exp(0.3 * NORMAL), rel=0.02)
    assert step.least / step.likely == pytest.approx(exp(-0.3 * NORMAL), rel=0.02)
    assert estimated(*GPU, host=0.3, monkeypatch=monkeypatch).estimate.step.most < 1.01 * 40 * MS


def test_a_slower_host_makes_a_step_longer_that_it_limits_and_no_launch():
    """By hand: 200 operators, each 16 µs on a usual host, of which 4.7 µs are the launch."""

    def step(factor: float, *entries):
        run_ = session(*8 * [list(entries)])
        paced = replace_(run_.programme, host=HostSpeed(factor=factor))
        return report(replace_(run_, programme=paced)).estimate.step

    own, launch = 11_300, 4_700
    for factor in (0.5, 1.0, 3.0):
        expected = 200 * (own * factor + launch)
        assert step(factor, *HOST, *HOST).likely == pytest.approx(expected, rel=0.02)
    assert step(3.0, *GPU).likely == pytest.approx(step(1.0, *GPU).likely, rel=0.01)


def test_a_host_that_was_measured_is_better_known():
    run_ = session(*8 * [[*HOST, *HOST]])
    measured = replace_(run_.programme, host=HostSpeed(factor=1.0, measured=True, cpu="Some CPU"))
    usual, own = report(run_).estimate, report(replace_(run_, programme=measured)).estimate
    assert own.step.likely == usual.step.likely
    assert own.step.most - own.step.least < usual.step.most - usual.step.least
    assert any("as measured on this machine (Some CPU)" in assumption for assumption in own.assumptions)
    assert own.speed == measured.host
    assert usual.speed is None


def test_what_operators_do_not_share_averages_out(monkeypatch):
    """Forty operators of one family that differ: of each one's variance their common parts are left."""
    different = [add(1.0 + number / 1000) for number in range(40)]
    step = estimated(*different, device=0.4, monkeypatch=monkeypatch).estimate.step
    own = (1 - COMMON_VARIANCE - FAMILY_VARIANCE) / 40
    sigma = 0.4 * (COMMON_VARIANCE + FAMILY_VARIANCE + own) ** 0.5
    assert step.most / step.least == pytest.approx(exp(2 * sigma * NORMAL), rel=0.15)
    alike = estimated(*GPU, device=0.4, monkeypatch=monkeypatch).estimate.step
    assert alike.most / alike.least > 1.15 * step.most / step.least


def test_what_no_model_has_proved_does_not_average_out(monkeypatch):
    different = [add(1.0 + number / 1000) for number in range(40)]
    step = estimated(*different, unproven=0.4, monkeypatch=monkeypatch).estimate.step
    assert step.most / step.least == pytest.approx(exp(2 * 0.4 * NORMAL), rel=0.05)


def test_what_whole_models_have_proved():
    """Long kernels in fp32 that the measured models consist of, and nothing else."""
    times = Times(A100)
    assert times.doubt(add(1.0)).unproven == 0
    assert times.doubt(add()).unproven > 0.2  # a short one
    assert times.doubt(replace_(add(1.0), dtype="bfloat16")).unproven > 0.2
    assert times.doubt(replace_(add(1.0), name="aten::sort")).unproven > 0.2


def test_the_reason_for_a_wider_interval_is_reported():
    def is_warned(entry: Entry) -> bool:
        estimate = report(session(*8 * [[entry] * 40])).estimate
        return any(
            f"100% of the GPU's time may be off by {UNPROVEN_SPREAD:.0%} together" in assumption
            for assumption in estimate.assumptions
        )

    assert is_warned(replace_(add(1.0), dtype="bfloat16"))
    assert not is_warned(add(1.0))


def test_more_draws_tell_the_same(monkeypatch):
    few = estimated(*GPU, read(), *HOST, host=0.4, device=0.3, monkeypatch=monkeypatch).estimate
    drawn = draw_machines
    monkeypatch.setattr(
        "gapless.analyze.estimate.estimate.draw_machines", lambda *words: drawn(*words, count=16 * DRAWS)
    )
    many = estimated(*GPU, read(), *HOST, host=0.4, device=0.3, monkeypatch=monkeypatch).estimate
    for bounds, other in ((few.step, many.step), (few.saved, many.saved)):
        assert bounds.least == pytest.approx(other.least, rel=0.1)
        assert bounds.most == pytest.approx(other.most, rel=0.1)


def test_a_saving_is_a_difference_on_one_machine(monkeypatch):
    """What the host does behind a wait is saved. A device whose speed is not known moves the step and not
    the saving."""
    report = estimated(*GPU, read(), *HOST, device=0.4, monkeypatch=monkeypatch)
    assert report.estimate.step.most > 1.4 * report.estimate.step.least
    assert report.estimate.saved.most < 1.2 * report.estimate.saved.least


def test_what_limits_a_step_and_how_surely(monkeypatch):
    def of(*step):
        estimate = estimated(*step, host=0.4, device=0.4, monkeypatch=monkeypatch).estimate
        return estimate.limiter, estimate.sure

    assert of(*HOST) == ("host", 1.0)
    assert of(*GPU) == ("device", 1.0)
    even = [add(0.017)] * 100
    assert 0.5 <= of(*even)[1] < 0.95


@pytest.mark.parametrize(("time", "exposed"), [(20 * MS, 0), (60 * MS, 0), (60 * MS, 20 * MS), (400 * MS, 0)])
def test_a_step_with_collectives_is_in_the_middle_of_its_interval(time, exposed, monkeypatch):
    """Of 40 ms of work and collectives behind it: as many machines take longer as less."""
    monkeypatch.setattr(
        "gapless.analyze.estimate.estimate.communication_time",
        lambda *words: CommunicationTime(time, exposed, 0.3),
    )
    true_interval, drawn_by_likely = interval, {}

    def kept(likely, drawn, most=None):
        bounds = true_interval(likely, drawn, most)
        drawn_by_likely[bounds.likely] = np.array(drawn)
        return bounds

    monkeypatch.setattr("gapless.analyze.estimate.estimate.interval", kept)
    collective = Entry(kind="collective", name="all_reduce", group="ranks 0-7", ranks=8)
    step = estimated(*GPU, collective, device=0.2, monkeypatch=monkeypatch).estimate.step
    assert step.least < step.likely < step.most
    assert (drawn_by_likely[step.likely] < step.likely).mean() == pytest.approx(0.5, abs=0.1)


def test_limiters_of_a_step_are_listed_the_likeliest_first(monkeypatch):
    estimate = estimated(*[add(0.017)] * 100, host=0.4, device=0.4, monkeypatch=monkeypatch).estimate
    assert {*estimate.limiters} == {"host", "device"}
    assert sum(estimate.limiters.values()) == pytest.approx(1)
    assert next(iter(estimate.limiters.items())) == (estimate.limiter, estimate.sure)
    assert [*estimate.limiters.values()] == sorted(estimate.limiters.values(), reverse=True)


def test_an_interval_is_between_quantiles_and_holds_the_likely_value():
    assert interval(50, list(range(101))) == Range(10, 50, 90)
    assert interval(200, list(range(101))).most == 200
    assert interval(-5, list(range(101))).least == -5
    assert interval(7, [7.0] * DRAWS) == Range(7, 7, 7)


def test_the_drawn_machines_are_balanced():
    entries = [add(1.0 + number / 1000) for number in range(30)]
    drawn = draw_machines(entries, lambda entry: TimeUncertainty("pointwise", 0.3), 0.5)
    hosts = np.log([estimate.host for estimate in drawn])
    device = np.log([profile.device for profile in drawn])
    assert hosts.mean() == pytest.approx(0.0, abs=1e-9)
    assert np.abs(device.mean(axis=0)).max() < 1e-9
    assert hosts.std() == pytest.approx(0.5, rel=0.1)
    assert np.quantile(device, HIGH_QUANTILE) == pytest.approx(0.3 * NORMAL, rel=0.1)
    assert abs(np.corrcoef(hosts, device.mean(axis=1))[0, 1]) < 0.2
    assert [estimate.host for estimate in drawn] == [
        machine.host
        for machine in draw_machines(entries, lambda entry: TimeUncertainty("pointwise", 0.3), 0.5)
    ]
