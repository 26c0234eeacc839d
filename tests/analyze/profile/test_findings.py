"""From costs to findings and to the sentence."""

from __future__ import annotations

import msgspec
import pytest
from trace_builder import Trace, training

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.costs import MAX_PLACES_PER_CAUSE
from gapless.analyze.profile.profile_findings import find_in_profiles
from gapless.analyze.profile.profile_report import report_run
from gapless.errors import UnreadableInput
from gapless.model import Cost, Profile, Site, SourceLine
from gapless.model.profile import Steps, decode, encode

MS = 1_000_000
TRAIN = SourceLine("train.py", 12, "train")


def profile_of(*costs: Cost, step: int = 100 * MS, steps: int = 4, **more: object) -> Profile:
    """A profile with these costs."""
    start = tuple(range(0, steps * step, step))
    idle = sum(cost.idle for cost in costs)
    return Profile(
        steps=Steps(
            source="ProfilerStep",
            start=start,
            end=tuple(at + step for at in start),
            busy=tuple(step - idle // steps for _ in start),
        ),
        idle=idle,
        costs=costs,
        **more,  # type: ignore[arg-type]
    )


def wait(idle: int, blocked: int, *stack: SourceLine, calls: int = 4, steps: int = 4) -> Cost:
    site = Site(operator="aten::_local_scalar_dense", mechanism="read", call="Tensor.item", stack=stack)
    working = blocked - idle
    return Cost(
        cause="wait", site=site, idle=idle, blocked=blocked, working=working, calls=calls, steps=steps
    )


def test_a_wait_with_its_numbers():
    (finding,) = find_in_profiles([profile_of(wait(20 * MS, 40 * MS, TRAIN))])
    assert (finding.code, finding.line, finding.frequency.when) == ("GAP101", TRAIN, "every-step")
    assert finding.loss.idle == 20 * MS
    assert finding.loss.share == pytest.approx(0.05)
    assert finding.evidence[0] == "the GPU idles 5 ms of each 100 ms step because of it, 5.0 %"
    assert finding.evidence[1] == "the CPU stops for 10 ms per step, 4 syncs in all"


def test_a_long_wait_that_costs_nothing_is_said_to():
    (finding,) = find_in_profiles([profile_of(wait(0, 300 * MS, TRAIN))])
    assert "while the GPU works" in finding.evidence[0]
    assert not any("idles" in text for text in finding.evidence)


def test_order_is_by_what_the_gpu_lost_and_not_by_the_length_of_the_call():
    long = wait(1 * MS, 300 * MS, SourceLine("train.py", 1, "f"))
    short = wait(15 * MS, 16 * MS, SourceLine("train.py", 2, "f"))
    assert [in_profile.line.line for in_profile in find_in_profiles([profile_of(long, short)])] == [2, 1]


def test_one_place_is_one_finding():
    model = SourceLine("transformers/models/x.py", 1421, "box", library="transformers")
    other = SourceLine("transformers/pipelines/base.py", 1173, "move", library="transformers")
    in_profiles = find_in_profiles(
        [
            profile_of(
                wait(2 * MS, 9 * MS, model, TRAIN),
                wait(3 * MS, 9 * MS, model, TRAIN, SourceLine("main.py", 1, "main")),
                wait(1 * MS, 9 * MS, other, TRAIN),
            )
        ]
    )
    assert [finding.loss.idle for finding in in_profiles] == [5 * MS, 1 * MS]
    assert in_profiles[0].library_stack == (model,)


def test_without_lines_the_place_is_named():
    cost = msgspec.structs.replace(wait(20 * MS, 40 * MS), place="aten::item in forward")
    in_profile = find_in_profiles([profile_of(cost)])[0]
    assert (in_profile.line, in_profile.place) == (None, "aten::item in forward")


@pytest.mark.parametrize(("steps", "when"), [(4, "every-step"), (1, "some-steps")])
def test_in_how_many_steps(steps, when):
    (finding,) = find_in_profiles([profile_of(wait(20 * MS, 40 * MS, TRAIN, steps=steps))])
    assert finding.frequency.when == when


def test_the_gpus_own_work_is_no_finding():
    assert find_in_profiles([profile_of()]) == ()
    first = report_run([profile_of()]).verdict
    assert (first.level, first.do_first) == ("fine", ())
    assert "nothing to gain" in first.sentence


def test_the_sentence_names_the_greatest_cause():
    starved = Cost(cause="input", site=Site(operator="next", mechanism="none"), idle=120 * MS)
    first = report_run([profile_of(starved, wait(20 * MS, 40 * MS))]).verdict
    assert (
        first.sentence
        == "Your GPU idles 35 % of each 100 ms step, mostly (30 %) because the next batch is late"
    )
    assert profile_of(starved, wait(20 * MS, 40 * MS)).idle_by_cause() == [
        ("input", 120 * MS),
        ("wait", 20 * MS),
    ]


def test_a_profile_of_the_cpu_alone_is_refused_in_one_line():
    trace = Trace()
    trace.operator("aten::mm", 0, 10)
    with pytest.raises(UnreadableInput, match=r"no GPU work.*ProfilerActivity\.CUDA") as caught:
        build_profile(trace.timeline())
    assert "\n" not in str(caught.value)


def test_thousands_of_places_are_summed_up():
    trace = Trace()
    for number in range(2 * MAX_PLACES_PER_CAUSE):
        now = 200 * number
        trace.operator(f"mine::op{number}", now, 50)
        trace.launch("kernel", now + 10, 5, kernel=(now + 16, 100))
    profile = build_profile(trace.timeline())
    assert len(profile.costs) <= 2 * MAX_PLACES_PER_CAUSE
    assert sum(cost.idle for cost in profile.costs) == profile.idle
    assert any(cost.place == "elsewhere" for cost in profile.costs)


def test_saved_profiles_come_back_equal():
    profiles = [build_profile(training().timeline()), build_profile(training("old").timeline())]
    assert list(decode(encode(profiles))) == profiles


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"format": "gapless-session", "version": 1}',
        b'{"format": "gapless-profile", "version": 99}',
    ],
)
def test_other_files_are_no_saved_profile(data):
    with pytest.raises(UnreadableInput):
        decode(data, "x.json")


def test_of_several_ranks_the_late_one_is_looked_at(public_profile):
    ranks = [public_profile(end) for end in ("49-eeda", "50-66ac", "51-5c94", "52-3e81")]
    report = report_run(ranks)
    assert report.profile is ranks[2]
    assert report.findings[0].code == "GAP602"
    late = {row.rank: row.late for row in report.ranks}
    assert late[2] > 0.9e9
    assert max(late[rank] for rank in (0, 1, 3)) < 0.02e9


class TestRealTraces:
    """What a reader of these profiles must be told."""

    def test_owlv2_waits_for_its_input(self, public_profile):
        report = report_run([public_profile("owlv2-large-patch14-ensemble-1016001-d242")])
        assert report.findings[0].code == "GAP301"
        assert "next batch" in report.sentence
        (box,) = (
            finding
            for finding in report.findings
            if any(frame.function == "box_predictor" for frame in finding.library_stack)
            and finding.code == "GAP120"
        )
        assert box.library_stack[-1].library == "transformers" or box.line.library == ""
        assert box.loss.blocked == pytest.approx(358.6 * MS, rel=0.01)
        assert box.loss.share < 0.01
        assert "while the GPU works" in " ".join(box.evidence)

    def test_resnet50_starved_and_less_so(self, public_profile):
        none, four = (public_profile(end) for end in ("1623143089861-9b36", "1623212756351-288e"))
        first, second = report_run([none]), report_run([four])
        assert first.findings[0].code == "GAP301"
        assert first.findings[0].line.where.endswith("resnet50_profiler_api.py:42")
        assert all(finding.code != "GAP301" for finding in second.findings)
        starved = [
            dict(profile.idle_by_cause()).get("input", 0) / profile.steps.total for profile in (none, four)
        ]
        assert starved[0] > 0.3
        assert starved[1] < 0.02

    def test_segment_anything_indexes_with_masks(self, public_profile):
        report = report_run([public_profile("asdf_False-c51d")])
        assert report.findings[0].code == "GAP112"
        assert report.findings[0].loss.calls > 1400

    def test_everything_is_reported(self, real_profile):
        report = report_run([real_profile])
        assert report.sentence
        for finding in report.findings:
            assert finding.loss is not None
            assert 0 <= finding.loss.idle <= real_profile.idle or finding.code == "GAP602"
            assert 0 <= finding.loss.share <= 1
            assert finding.remedy
            assert finding.line or finding.place or finding.evidence
