"""What recording adds to a step is no saving."""

from __future__ import annotations

from trace_builder import Trace, training

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.profile_report import report_run
from gapless.model import Profile


def profile_after(unrecorded: int) -> Profile:
    """The profile of training that waits, recorded after steps of that length in nanoseconds."""
    trace = training()
    trace.head["gapless"] = {"unrecorded_step": unrecorded}
    return build_profile(trace.timeline(), priced=True)


def test_savings_are_at_most_what_the_gpu_idles_without_recording() -> None:
    recorded = profile_after(0)
    busy = recorded.steps.total - recorded.idle
    step = int(busy / recorded.steps.count + 0.1 * recorded.idle / recorded.steps.count)
    bounded = profile_after(step)
    left = bounded.unrecorded_idle
    assert abs(left - 0.1 * recorded.idle) < recorded.steps.count
    assert recorded.prices is not None
    assert bounded.prices is not None
    assert left > 0
    most = left + sum(copy.alone for copy in bounded.copies if copy.memory == "pageable")
    assert bounded.prices.all <= most < recorded.prices.all
    assert all(price.alone <= most and price.last <= most for price in bounded.prices.each)
    report = report_run([bounded])
    assert any("longer than unrecorded ones" in note for note in report.notes)
    assert report.verdict.do_first[0].before == bounded.unrecorded_step == step
    assert step - report.verdict.do_first[-1].after <= 2 * most / recorded.steps.count


def test_steps_that_are_not_slower_are_as_they_were_recorded() -> None:
    plain = build_profile(training().timeline(), priced=True)
    for unrecorded in (0, int(plain.steps.mean), int(2 * plain.steps.mean)):
        profile = profile_after(unrecorded)
        assert profile.prices == plain.prices
        assert profile.notes == plain.notes


def test_a_damaged_record_is_none() -> None:
    trace = Trace()
    trace.head["gapless"] = {"unrecorded_step": "often"}
    trace.launch("work", 0, 4, kernel=(5, 100))
    assert trace.timeline().facts.unrecorded_step == 0
