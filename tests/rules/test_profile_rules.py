"""All rules over a profile: silence where nothing is wrong, and laws that hold for any profile."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.profiles import (
    GB,
    LAUNCHES,
    MS,
    SINGLE,
    STACKS,
    WORKERS,
    cost,
    find_hits,
    kernel,
    library,
    memory,
    only,
    profile,
    said,
    site,
    steps,
    user,
)

from gapless.analyze.profile.building import build_profile as profile_of
from gapless.model import Cost, Hit, Profile, ProfileRule, Rule, Site
from gapless.model.profile import KernelTime, Launches, MemoryUse, PhaseTime, Recording, Split, Steps
from gapless.rules import rules_of_kind
from gapless.trace.read import read

OURS = [each for each in rules_of_kind(ProfileRule) if each.code[:4] in ("GAP3", "GAP4", "GAP5", "GAP7")]


class TestSilence:
    """Profiles in which nothing is wrong, or nothing is known."""

    @pytest.mark.parametrize("tested", OURS, ids=lambda tested: tested.code)
    @pytest.mark.parametrize(
        "silent",
        [
            Profile(),
            Profile(steps=steps(100, source="span")),
            profile(),
            profile(
                *[
                    cost(cause, 1, site("aten::mul", 3), steps=6)
                    for cause in ("input", "launch", "host", "graph")
                ],
                launches=LAUNCHES,
                kernels=(kernel("gemm", 590, 4.0),),
                sm_efficiency=0.97,
                memory=memory(0, 0, 0),
                gpu_memory=80 * GB,
                recording=STACKS,
            ),
            profile(cost("unknown", 300, site("")), cost("communication", 100, site("nccl:all_reduce"))),
            profile(cost("wait", 300, site("aten::item", 3), blocked=500 * MS, calls=6)),
        ],
        ids=["empty", "no-work", "busy", "busy-with-trifles", "unexplained", "waits"],
    )
    def test_a_rule_has_nothing_to_say(self, tested: Rule, silent: Profile) -> None:
        assert list(tested.of_profile(silent)) == []


CAUSES = ("wait", "input", "launch", "host", "allocator", "communication", "graph", "profiler", "unknown")
NAMES = (
    "",
    SINGLE,
    WORKERS,
    "aten::mul",
    "cudaMalloc",
    "cudaFree",
    "cudaGraphLaunch",
    "Optimizer.step#SGD.step",
    "CompiledFunction",
)
FRAMES = (
    user(3),
    user(9, "a\\b.py", ""),
    library("torch/optim/adam.py", "Adam.step"),
    library("torch/optim/optimizer.py", "zero_grad"),
    library("wandb/run.py", "log"),
    library("torch/_dynamo/convert_frame.py", "_compile"),
)
number = st.integers(-1, 10**12)
part = st.floats(-1, 2) | st.just(float("nan"))
text = st.sampled_from(NAMES)
sites = st.builds(
    Site,
    operator=text,
    mechanism=st.just("none"),
    call=text,
    node=st.sampled_from(("", "MulBackward0")),
    stack=st.lists(st.sampled_from(FRAMES), max_size=3).map(tuple),
)
costs = st.builds(
    Cost,
    cause=st.sampled_from(CAUSES),
    site=sites,
    place=text,
    idle=number,
    stretches=number,
    calls=number,
    blocked=number,
    bytes=number,
    steps=st.integers(-1, 9),
    start=number,
    end=number,
)
several = st.lists(number, max_size=5).map(tuple)
profiles = st.builds(
    Profile,
    vendor=st.sampled_from(("", "nvidia", "amd")),
    device=st.integers(-1, 3),
    gpu_memory=number,
    steps=st.builds(
        Steps, source=st.sampled_from(("span", "ProfilerStep")), start=several, end=several, busy=several
    ),
    split=st.builds(Split, memcpy=number),
    idle=number,
    utilization=part,
    sm_efficiency=part,
    phases=st.lists(
        st.builds(PhaseTime, name=st.sampled_from(("loading", "transfer")), host=number, device=number),
        max_size=2,
    ).map(tuple),
    kernels=st.lists(
        st.builds(KernelTime, name=text, calls=number, total=number, blocks_per_sm=part, operator=text),
        max_size=3,
    ).map(tuple),
    launches=st.builds(Launches, count=number, short=number, empty=part, call=number, kernel=number),
    memory=st.builds(
        MemoryUse,
        peak_allocated=number,
        peak_reserved=number,
        drops=st.integers(-1, 20),
        given_back=number,
        taken_again=number,
    ),
    costs=st.lists(costs, max_size=8).map(tuple),
    recording=st.builds(
        Recording,
        stacks=st.sampled_from(("", "frames", "call-stack")),
        with_stack=st.booleans(),
        with_memory=st.booleans(),
        overhead=number,
        overheads=st.dictionaries(text, number, max_size=3),
        events_per_step=number,
        truncated=st.booleans(),
    ),
)


@st.composite
def sound_profiles(draw: st.DrawFn) -> Profile:
    """Profiles as a trace makes them: steps follow one another, and the costs add up to the idleness."""
    drawn = draw(profiles)
    marked = steps(*draw(st.lists(st.integers(1, 1000), min_size=1, max_size=8)), source=drawn.steps.source)
    room = marked.total
    kept = []
    for each in drawn.costs:
        idle = min(max(each.idle, 0), room)
        room -= idle
        start = draw(st.integers(0, marked.total - 1))
        kept.append(
            msgspec.structs.replace(each, idle=idle, start=start, steps=draw(st.integers(1, marked.count)))
        )
    return msgspec.structs.replace(
        drawn, steps=marked, costs=tuple(kept), idle=sum(each.idle for each in kept)
    )


class TestLaws:
    @given(profiles)
    @settings(max_examples=300, deadline=None)
    def test_no_profile_breaks_a_rule_and_no_hit_claims_more_than_there_is(self, drawn: Profile) -> None:
        for each in OURS:
            for hit in each.of_profile(drawn):
                assert len(hit.change) <= 60
                assert hit.change.count("`") % 2 == 0
                self.check(each, hit, drawn)

    @given(sound_profiles())
    @settings(max_examples=200, deadline=None)
    def test_of_one_rule_the_hits_share_the_idleness(self, drawn: Profile) -> None:
        for each in OURS:
            hits = list(each.of_profile(drawn))
            assert sum(hit.idle for hit in hits) <= drawn.idle
            for hit in hits:
                self.check(each, hit, drawn)

    @given(sound_profiles())
    @settings(max_examples=200, deadline=None)
    def test_no_idleness_is_claimed_twice(self, drawn: Profile) -> None:
        assert sum(hit.idle for each in OURS for hit in each.of_profile(drawn)) <= drawn.idle

    @given(sound_profiles(), st.randoms(use_true_random=False))
    @settings(max_examples=100, deadline=None)
    def test_the_order_of_the_costs_does_not_change_what_is_found(
        self, drawn: Profile, random: object
    ) -> None:
        shuffled = list(drawn.costs)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        other = msgspec.structs.replace(drawn, costs=tuple(shuffled))
        for each in OURS:
            assert sorted(hit.idle for hit in each.of_profile(drawn)) == sorted(
                hit.idle for hit in each.of_profile(other)
            )

    @staticmethod
    def check(each: Rule, hit: Hit, drawn: Profile) -> None:
        assert 0 <= hit.idle <= max(drawn.idle, 0)
        assert 0 <= hit.steps <= drawn.steps.count
        assert hit.blocked >= 0
        assert hit.calls >= 0
        assert hit.evidence, each.code
        for sentence in (*hit.evidence, hit.remedy):
            assert sentence == sentence.strip()
            assert not sentence.endswith("."), sentence
            assert "  " not in sentence
            assert sentence.count("`") % 2 == 0, sentence
            assert not re.search(r"-\d|\bnan\b", sentence.replace("num_workers", "")), sentence
            for share in re.findall(r"([\d.,]+) %", sentence):
                assert 0 <= float(share) <= 100, sentence


FOLDER = Path(__file__).resolve().parents[3] / "shared" / "traces"


def real(ending: str) -> Profile:
    """The profile of a public trace, where it lies beside the repository."""
    traces = sorted(FOLDER.glob(f"*{ending}.json.gz"))
    if not traces:
        pytest.skip(f"no profile {ending}")
    return profile_of(read(traces[0]))


class TestRealTraces:
    def test_a_loader_without_workers(self) -> None:
        hit = only("GAP301", real("9b36"))  # resnet50, num_workers=0
        assert "`num_workers=0`" in said(hit)
        assert "so 1 worker can keep up" in hit.remedy

    def test_the_same_with_four_workers(self) -> None:
        assert not find_hits("GAP301", real("288e"))

    def test_workers_that_do_not_keep_up(self) -> None:
        hit = only("GAP301", real("8912"))
        assert "of each 334 ms step" in said(hit)
        assert "the workers do not keep up" in hit.remedy

    def test_a_pipeline_that_feeds_itself(self) -> None:
        real_profile = real("d242")  # owlv2: the waits are long, and what idles is the input
        hits = [hit for each in OURS for hit in each.of_profile(real_profile)]
        assert max(hits, key=lambda hit: hit.idle) == only("GAP301", real_profile)
        assert 0.4 < hits[0].idle / real_profile.steps.total < 0.6
