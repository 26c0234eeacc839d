"""Prices on findings: from the replay of the timeline."""

from __future__ import annotations

import pytest
from trace_builder import Trace, training

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.profile_findings import find_in_profiles
from gapless.analyze.profile.profile_report import report_run
from gapless.errors import UsageError


def waiting(waits: bool = True, steps: bool = False) -> Trace:
    """Kernels of 300 µs, with 200 µs of work on the host before each launch and a wait after it.

    With `steps` each 10 are a step.
    """
    trace = Trace()
    now = device = begin = 0.0
    for number in range(60):
        if steps and number and number % 10 == 0:
            trace.step(number // 10, begin, now - begin)
            begin = now
        trace.operator("aten::mm", now + 200, 10)
        device = max(device, now + 205)
        trace.launch("gemm", now + 201, 5, kernel=(device + 3, 300))
        device += 303
        now += 212
        if waits and number < 59:
            trace.operator("aten::item", now, device - now + 6)
            trace.operator("aten::_local_scalar_dense", now + 1, device - now + 4)
            trace.copy("DtoH (Device -> Pageable)", now + 2, device - now + 1, copy=(device, 1))
            trace.wait(device + 3.5, 1)
            now = device + 7
    trace.frame("/work/train.py(3): train", 0, now)
    return trace


def test_a_wait_that_hides_the_hosts_work_is_worth_it():
    profile = build_profile(waiting().timeline(), priced=True)
    finding = next(finding for finding in find_in_profiles([profile]) if finding.code == "GAP101")
    assert profile.prices is not None
    assert profile.prices.reasons == ()
    # Device and host alternate, 300 and some 215 µs; without the waits the device alone is the limit.
    assert finding.price.alone == pytest.approx(59 * 210_000, rel=0.1)
    assert finding.price.alone == finding.price.last == profile.prices.all
    assert profile.prices.remains == "device"
    assert finding.price.removal == "deferrable"
    assert finding.price.alone <= finding.price.blocked


def test_no_price_is_made_unless_asked_for():
    profile = build_profile(waiting().timeline())
    assert profile.prices is None
    assert all(in_profile.price is None for in_profile in find_in_profiles([profile]))


def test_of_prices_that_are_not_there_nothing_is_said():
    """Few operations make prices bounds, which matters where there is one."""
    trace = Trace()
    for number in range(5):
        trace.launch("gemm", 10.0 * number, 5, kernel=(100.0 * number + 5, 90))
    profile = build_profile(trace.timeline(), priced=True)
    assert profile.prices is not None
    assert profile.prices.reasons
    assert all(table.title != "Prices" for table in report_run([profile]).tables)


@pytest.mark.parametrize("change", ["GAP101", "gap10", "train.py:3", "/work/train.py", "work/train.py"])
def test_leaving_out_what_was_asked_for(change):
    profile = build_profile(waiting().timeline(), requested=[change])
    assert profile.prices.asked.waits == 59
    assert profile.prices.asked.saved == profile.prices.all


@pytest.mark.parametrize("change", ["GAP112", "rain.py:3", "torch", "train.py:4"])
def test_only_existing_findings_can_be_left_out(change):
    with pytest.raises(UsageError, match="nothing to leave out"):
        build_profile(waiting().timeline(), requested=[change])


def test_one_launch_for_each_step_needs_steps():
    with pytest.raises(UsageError, match="needs marked steps"):
        build_profile(waiting().timeline(), requested=["@graphs"])


@pytest.mark.parametrize("assumption", ["@pinned", "@input", "@graphs", "@half:gemm"])
def test_other_assumptions(assumption):
    profile = build_profile(waiting(steps=True).timeline(), requested=[assumption])
    assert profile.prices.asked.assumed == (assumption[1:],)
    assert profile.prices.asked.waits == 0
    # Host and device alternate: what makes either faster is saved; nothing is copied to the device or loaded.
    saved = profile.prices.asked.saved
    least = {"@half:gemm": 59 * 140_000, "@graphs": 45 * 100_000}.get(assumption)
    assert saved == 0 if least is None else saved > least


def test_waits_for_what_the_profile_does_not_show_have_no_price():
    """In each step a synchronization of 3 ms, long after the step's own kernels have ended."""
    trace = Trace()
    for number in range(6):
        begin = 10_000.0 * number
        trace.step(number, begin, 10_000)
        for at in range(10):
            trace.operator("aten::mm", begin + 300 * at, 20)
            trace.launch("gemm", begin + 300 * at + 2, 10, kernel=(begin + 300 * at + 15, 280))
        trace.call("cudaDeviceSynchronize", begin + 4000, 3000)
    trace.frame("/work/train.py(3): train", 0, 60_000)
    profile = build_profile(trace.timeline(), priced=True)
    price = next(price for price in profile.prices.each if price.kept or price.unknown)
    assert price.unknown
    assert (price.alone, price.last) == (-1, -1)
    finding = next(
        finding
        for finding in find_in_profiles([profile])
        if finding.loss is not None and finding.loss.blocked
    )
    assert finding.price.unknown
    assert not any(finding.code in change.codes for change in report_run([profile]).verdict.do_first)


def launch_bound(steps: int = 6, kernels: int = 50) -> Trace:
    """A step every 1 ms in which the CPU launches a kernel of 6 µs every 20 µs: the GPU idles 70 %."""
    trace = Trace()
    for number in range(steps):
        begin = 1000.0 * number
        trace.step(number, begin, 1000)
        for at in range(kernels):
            now = begin + 20 * at
            trace.operator("aten::mul", now, 15)
            trace.launch("tiny", now + 2, 10, kernel=(now + 9, 6))
    trace.call("cudaDeviceSynchronize", 1000.0 * steps, 10)
    return trace


def test_a_launch_bound_profile_gains_by_one_launch_for_each_step():
    profile = build_profile(launch_bound().timeline(), requested=["@graphs"])
    assert profile.idle / profile.steps.total == pytest.approx(0.7, abs=0.01)
    prices = profile.prices
    assert prices.reasons == ()
    # What is left of a step are its kernels, one behind the other, and one launch.
    assert prices.asked.saved > 0.5 * prices.span
    assert prices.span - prices.asked.saved > 6 * 50 * 6_000
    reason = report_run([profile]).verdict.why[0]
    assert reason.startswith("With one launch per step, ")
    assert " less" in reason


def test_a_real_launch_bound_profile_gains_by_it(public_trace):
    timeline = public_trace("HolisticTraceAnalysis-with_gpu_user_annotation-step_based_trace_2543932-d8f4")
    profile = build_profile(timeline, requested=["@graphs"])
    assert profile.idle / profile.steps.total > 0.9
    assert 0.4 < profile.prices.asked.saved / profile.prices.span < 1


@pytest.mark.parametrize("assumption", ["@moon", "@half:", "@half:conv"])
def test_assumptions_that_mean_nothing(assumption):
    with pytest.raises(UsageError, match=r"half|no kernel"):
        build_profile(waiting().timeline(), requested=[assumption])


def test_too_little_to_replay_is_refused_in_words():
    profile = build_profile(training(steps=1).timeline(), priced=True)
    assert profile.prices is not None
    assert profile.prices.refused or profile.prices.reasons


def test_the_study_of_real_traces(public_profile, public_trace):
    timeline = public_trace("TraceLens-h100-google_owlv2-large-patch14-ensemble-1016001-d242")
    profile = build_profile(timeline, priced=True)
    box = next(
        in_profile
        for in_profile in find_in_profiles([profile])
        if in_profile.price and any(frame.function == "box_predictor" for frame in in_profile.library_stack)
    )
    # Long and worth nothing alone; with the copies gone, too, it is most of what can be saved.
    assert box.price.blocked > 350e6
    assert box.price.alone < 5e6
    assert box.price.last > 250e6
    assert profile.prices.all == pytest.approx(305e6, rel=0.05)
