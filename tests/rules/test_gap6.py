"""Exposed communication, the slow rank, many small collectives: where they are seen, and where not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rules.profiles import MS, cost, find_hits, profile, site, steps
from simulated_ranks import simulated

from gapless.analyze.collectives.ranks import compare_ranks
from gapless.model import Hit, Profile, SourceLine
from gapless.model.profile import Collectives, KernelTime, LineTime, PhaseTime, Split, Steps
from gapless.rules import rule

change = msgspec.structs.replace
BACKWARD = (PhaseTime(name="backward", host=5 * MS, device=50 * MS),)


def in_each_step(
    name: str, lengths: Sequence[float], elements: Sequence[int] = (), group: str = "", count: int = 6
) -> Collectives:
    """Kernels of so many milliseconds in each of the steps of 100 ms, one behind the other."""
    start, length = [], []
    for step in range(count):
        now = step * 100 * MS
        for ms in lengths:
            start.append(now)
            length.append(round(ms * MS))
            now += round(ms * MS) + 1000
    return Collectives(
        name=name,
        group=group,
        start=tuple(start),
        length=tuple(length),
        elements=tuple(elements or [-1] * len(lengths)) * count,
    )


def communicating(ms: float, *series: Collectives, **more: object) -> Profile:
    """Six steps of 100 ms, in each of which the GPU only communicates for so long."""
    where = site("c10d::allreduce_")
    return profile(
        cost("communication", 6 * ms, where, steps=6, start=5, end=9),
        split=Split(communication=round(6 * ms * MS)),
        collectives=series,
        **more,
    )


class TestExposedCommunication:
    def single_hit(self, some: Profile) -> Hit:
        (hit,) = find_hits("GAP601", some)
        return hit

    def test_what_is_seen_is_told(self) -> None:
        hit = self.single_hit(communicating(20, in_each_step("all_reduce", [10, 15], [3_000_000, 5_000_000])))
        assert hit.evidence[:2] == (
            "the GPU does nothing but communicate for 20 ms of each 100 ms step, 20 %",
            "per step: 2 all_reduce of 8 million elements in all, 25 ms",
        )
        assert hit.idle == 120 * MS
        assert (hit.steps, hit.calls, hit.start, hit.end) == (6, 12, 5, 9)
        assert hit.site is not None
        assert hit.site.operator == "c10d::allreduce_"

    @pytest.mark.parametrize("ms", [0, 1, 9.9])
    def test_below_a_tenth_of_the_steps_it_is_left_alone(self, ms: float) -> None:
        assert not find_hits("GAP601", communicating(ms, in_each_step("all_reduce", [50])))

    def test_hidden_communication_is_left_alone(self) -> None:
        assert not find_hits("GAP601", profile(collectives=(in_each_step("all_reduce", [80]),)))

    def test_idleness_of_other_kinds_is_not_its_business(self) -> None:
        assert not find_hits("GAP601", profile(cost("host", 300, site("aten::mul"))))

    def test_at_many_places_it_is_of_the_whole(self) -> None:
        costs = [cost("communication", 30, site(f"c10d::{name}"), steps=6) for name in "abcd"]
        hit = self.single_hit(profile(*costs))
        assert hit.site is None
        assert hit.idle == 120 * MS

    @pytest.mark.parametrize(
        ("series", "words"),
        [
            (in_each_step("all_reduce", [3] * 5), "DistributedDataParallel starts a bucket"),
            (in_each_step("all_reduce", [20]), "one all-reduce per step cannot overlap"),
            (in_each_step("all_gather", [3] * 5), "backward_prefetch"),
            (in_each_step("reduce_scatter", [3] * 5), "fully_shard"),
            (in_each_step("all_to_all", [20]), "TrainPipelineSparseDist"),
            (in_each_step("broadcast", [20]), "broadcast_buffers=False"),
            (in_each_step("send_recv", [20]), "micro-batches"),
            (in_each_step("barrier", [20]), "remove the barrier"),
            (in_each_step("collective", [20]), "overlap collectives with computation"),
        ],
        ids=lambda value: value.name if isinstance(value, Collectives) else "",
    )
    def test_the_remedy_is_for_what_takes_longest(self, series: Collectives, words: str) -> None:
        hit = self.single_hit(communicating(20, in_each_step("broadcast", [0.1]), series))
        assert words in hit.remedy

    def test_the_longest_three_are_listed(self) -> None:
        names = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv")
        some = [in_each_step(name, [9 - at], group="7") for at, name in enumerate(names)]
        assert self.single_hit(communicating(20, *some)).evidence[1] == (
            "per step: 1 all_reduce in group 7, 9 ms; 1 all_gather in group 7, 8 ms; "
            "1 reduce_scatter in group 7, 7 ms; 2 other kinds"
        )

    def test_waiting_for_peers_is_separated_from_sending(self) -> None:
        """The same size takes 2 ms once and 20 ms otherwise: that is no transfer."""
        series = in_each_step("all_reduce", [20], [1000])
        series = change(series, length=(2 * MS, *series.length[1:]))
        hit = self.single_hit(communicating(17, series))
        assert hit.evidence[2].startswith(
            "15 ms of these 17 ms exceed the fastest run of the same collectives"
        )
        assert "first find the late rank" in hit.remedy

    def test_one_collective_of_a_size_says_nothing_about_waiting(self) -> None:
        sizes = in_each_step("all_reduce", [2, 20, 5], [10, 1000, 77], count=2)
        hit = self.single_hit(
            profile(cost("communication", 54, site("x")), marked=steps(100, 100), collectives=(sizes,))
        )
        assert "arrive late" not in hit.remedy
        assert hit.evidence[2].startswith("on a single rank, waiting for a late rank looks the same")

    def test_with_other_ranks_waiting_is_separated_from_transfer(self) -> None:
        sizes = in_each_step("all_reduce", [2, 20, 5], [10, 1000, 77], count=2)
        hit = self.single_hit(
            profile(cost("communication", 54, site("x")), marked=steps(100, 100), collectives=(sizes,))
        )
        ranks = compare_ranks(simulated(slow={2: lambda step, number: 3 * MS}, noise=0))
        beside = rule("GAP601").beside(hit, ranks)
        assert not any(
            "only the profiles of all ranks together can tell" in sentence for sentence in beside.evidence
        )
        assert (
            "a rank waits 8.55 ms per step for the last rank and transfers for 3.8 ms" in beside.evidence[-1]
        )

    def test_without_costs_the_split_tells(self) -> None:
        some = Profile(steps=steps(100, 100), idle=60 * MS, split=Split(communication=50 * MS))
        assert self.single_hit(some).idle == 50 * MS
        assert "50 ms" not in self.single_hit(some).evidence[0]


def across(profiles: Sequence[Profile]) -> list[Hit]:
    return list(rule("GAP602").of_ranks(compare_ranks(profiles)))


class TestStragglerRank:
    def test_what_is_seen_is_told(self) -> None:
        profiles = simulated(slow={2: lambda step, number: 3 * MS}, noise=0)
        (hit,) = across(profiles)
        assert hit.rank == 2
        # Five steps of 56 ms; of twenty collectives the first does not count.
        assert hit.evidence[:2] == (
            "rank 2 arrives last: its 3 peers wait 11.4 ms of each 56 ms step for it, 20 %",
            "it is the slowest in 5 of 5 steps, and the last to arrive for 100 % of the time that ranks "
            "wait in 19 collectives",
        )
        assert hit.idle == 57 * MS
        assert hit.steps == 5

    def test_several_late_ranks_are_named_with_their_share(self) -> None:
        slow = {
            2: lambda step, number: 6 * MS * (number % 2 == 0),
            5: lambda step, number: 6 * MS * (number % 2),
        }
        (hit,) = across(simulated(8, slow=slow, noise=0))
        # In turn; the first collective, for which rank 2 is late, does not count.
        assert hit.evidence[0] == (
            "ranks 5 and 2 arrive last: 53 % and 47 % of the time that ranks wait in 19 collectives is "
            "spent on them"
        )
        assert "compare what ranks 5 and 2 do with the others" in hit.remedy

    def test_a_collective_is_waiting_and_transfer(self) -> None:
        ranks = compare_ranks(simulated(slow={2: lambda step, number: 3 * MS}, noise=0))
        (shared,) = ranks.shared
        # 19 collectives in 5 steps: three of four ranks wait 3 ms in each, and the data takes 1 ms.
        assert shared.count == pytest.approx(3.8)
        assert shared.waiting == pytest.approx(3.8 * 2.25 * MS)
        assert shared.transfer == pytest.approx(3.8 * MS)
        assert ranks.latecomers is not None
        assert [(rank.rank, rank.share) for rank in ranks.latecomers.late] == [(2, 1.0)]

    def test_two_ranks(self) -> None:
        (hit,) = across(simulated(2, slow={0: lambda step, number: 3 * MS}))
        assert hit.rank == 0
        assert "its peer waits" in hit.evidence[0]

    @pytest.mark.parametrize(
        "profiles",
        [
            simulated(),
            simulated(slow={rank: lambda step, number: 9 * MS for rank in range(4)}),
            simulated(slow={2: lambda step, number: 3 * MS}, exposed=False),
            simulated(slow={2: lambda step, number: 3 * MS}, names=("broadcast",)),
            simulated(slow={1: lambda step, number: 90 * MS * (step == 2)}),
            simulated(slow={2: lambda step, number: 300 * MS * (step == 0 and number == 0)}),
            [simulated(seed=1, slow={0: lambda step, number: 9 * MS})[0], simulated(seed=2)[1]],
            simulated()[:1],
            [],
            [Profile(), Profile()],
        ],
        ids=[
            "equal",
            "all-slow",
            "hidden",
            "broadcasts",
            "once",
            "before-the-recording",
            "other-runs",
            "alone",
            "none",
            "empty",
        ],
    )
    def test_it_has_nothing_to_say(self, profiles: list[Profile]) -> None:
        assert across(profiles) == []

    def slow(self, **fields: object) -> tuple[Profile, Hit]:
        """Rank 1 is 3 ms late four times a step and differs from the others by `fields`."""
        profiles = simulated(slow={1: lambda step, number: 3 * MS}, noise=0)
        usual = {key: value[0] for key, value in fields.items()}  # type: ignore[index]
        odd = {key: value[1] for key, value in fields.items()}  # type: ignore[index]
        profiles = [change(drawn, **(odd if drawn.rank == 1 else usual)) for drawn in profiles]
        (hit,) = across(profiles)
        return profiles[1], hit

    def test_the_line_where_it_idles(self) -> None:
        mine = (cost("host", 60, site("", 42)), cost("input", 20, site("next", 7)))
        usual = (cost("host", 5, site("", 42)), cost("input", 20, site("next", 7)))
        _, hit = self.slow(costs=(usual, mine))
        assert hit.evidence[2:] == (
            "rank 1: idle 11 ms longer in each step at train.py:42, while the CPU does other work",
        )
        assert hit.site is not None
        assert hit.site.line == SourceLine("train.py", 42, "train")
        assert "look at what rank 1 does at `train.py:42`" in hit.remedy

    def test_the_line_that_launches_more_work(self) -> None:
        mine, usual = (
            tuple(
                LineTime(site=site("aten::mm", number), total=total * MS, kernels=9) for number, total in some
            )
            for some in (((3, 100), (4, 50)), ((3, 40), (4, 50)))
        )
        _, hit = self.slow(lines=(usual, mine))
        assert hit.evidence[2] == "rank 1: 12 ms more GPU work in each step from train.py:3"

    def test_a_slower_gpu(self) -> None:
        def kernels(factor: float) -> tuple[KernelTime, ...]:
            return tuple(KernelTime(name=name, calls=50, total=round(factor * 80 * MS)) for name in "abcd")

        _, hit = self.slow(kernels=(kernels(1.0), kernels(1.15)))
        assert hit.evidence[2] == (
            "rank 1: the same number of the same kernels takes 15 % longer: a slower GPU or larger inputs"
        )

    def test_some_slower_kernels_are_no_slower_gpu(self) -> None:
        def kernels(factor: float) -> tuple[KernelTime, ...]:
            return tuple(
                KernelTime(name=name, calls=50, total=round((factor if name == "a" else 1) * 80 * MS))
                for name in "abcd"
            )

        _, hit = self.slow(kernels=(kernels(1.0), kernels(2.0)))
        assert "slower GPU" not in " ".join(hit.evidence)

    def test_the_phase_where_no_place_tells(self) -> None:
        def phases(ms: int) -> tuple[PhaseTime, ...]:
            return (PhaseTime(name="forward", host=ms * MS), PhaseTime(name="backward", host=30 * MS))

        _, hit = self.slow(phases=(phases(50), phases(110)))
        assert hit.evidence[2] == "rank 1: 12 ms longer in each step on the CPU, in forward"

    def test_nothing_explains_it(self) -> None:
        _, hit = self.slow(notes=((), ()))
        assert hit.evidence[2] == "the recording does not show what takes it longer than its peers"
        assert "with_stack=True" in hit.remedy

    def test_waiting_for_others_is_no_reason(self) -> None:
        mine = (cost("communication", 90, site("c10d::allreduce_")),)
        _, hit = self.slow(costs=((), mine))
        assert "the recording does not show" in hit.evidence[2]


class TestManySmallCollectives:
    def small(self, count: int, size: int, **more: object) -> Profile:
        sizes = [size + number % 3 for number in range(count)]
        series = in_each_step("all_reduce", [0.01] * count, sizes)
        return profile(collectives=(series,), split=Split(communication=10 * MS), **more)

    def test_what_is_seen_is_told(self) -> None:
        (hit,) = find_hits("GAP603", self.small(60, 100))
        assert hit.evidence == (
            "60 all_reduce per step of at most 102 elements, 600 µs of kernels",
            "at 50 µs each, from call to end, 3 ms per step, 3.0 %",
        )
        assert "put the gradients into buckets" in hit.remedy
        assert hit.calls == 360

    def test_scalars_are_metrics(self) -> None:
        (hit,) = find_hits("GAP603", self.small(60, 1))
        assert "reduce once" in hit.remedy

    def test_larger_ones_beside_them(self) -> None:
        sizes = [10 + number for number in range(40)] + [10_000_000] * 2
        series = in_each_step("all_reduce", [0.01] * 40 + [5, 5], sizes)
        (hit,) = find_hits("GAP603", profile(collectives=(series,)))
        assert hit.evidence[:2] == (
            "40 all_reduce per step of at most 49 elements, 400 µs of kernels",
            "2 larger ones in addition",
        )

    def test_gathers(self) -> None:
        series = in_each_step("all_gather", [0.01] * 52, [1, 2] * 26, group="4")
        (hit,) = find_hits("GAP603", profile(collectives=(series,)))
        assert "52 all_gather per step in group 4" in hit.evidence[0]
        assert "gather once" in hit.remedy

    def test_short_kernels_where_no_sizes_were_recorded(self) -> None:
        series = in_each_step("all_reduce", [0.005] * 50 + [3] * 4)
        (hit,) = find_hits("GAP603", profile(collectives=(series,), phases=BACKWARD))
        assert hit.evidence[0].startswith("50 all_reduce per step whose kernels take at most 5 µs")

    @pytest.mark.parametrize(
        "some",
        [
            profile(),
            profile(collectives=(in_each_step("all_reduce", [0.01] * 8, [1] * 8),)),
            profile(collectives=(in_each_step("all_gather", [1] * 64, [50_000_000] * 64),)),
            profile(collectives=(in_each_step("all_reduce", [0.01] * 64, [4096] * 64),)),
            profile(collectives=(in_each_step("all_reduce", [0.01] * 64),)),
            profile(collectives=(in_each_step("all_reduce", [0.5] * 64),), phases=BACKWARD),
            profile(collectives=(in_each_step("send_recv", [0.01] * 64, [1, 2] * 32),)),
            Profile(
                steps=steps(60_000),
                collectives=(in_each_step("all_reduce", [0.01] * 64, [1, 2] * 32, count=1),),
            ),
            Profile(steps=steps(0.5), collectives=(in_each_step("all_reduce", [1] * 64, [1, 2] * 32),)),
            Profile(collectives=(in_each_step("all_reduce", [0.01] * 64, [1, 2] * 32),)),
        ],
        ids=[
            "none",
            "few",
            "sharded-parameters",
            "layers-of-a-split-model",
            "layers-without-sizes",
            "no-short-kernels",
            "pipeline",
            "long-step",
            "outside-the-steps",
            "no-steps",
        ],
    )
    def test_it_has_nothing_to_say(self, some: Profile) -> None:
        assert not find_hits("GAP603", some)

    def test_a_summary_that_ends_within_a_step_counts_whole_steps(self) -> None:
        series = in_each_step("all_reduce", [0.01] * 60, [1, 2] * 30)
        cut = {name: getattr(series, name)[:130] for name in ("start", "length", "elements")}
        (hit,) = find_hits("GAP603", profile(collectives=(change(series, **cut),)))
        assert hit.evidence[0].startswith("60 all_reduce per step")


number = st.integers(-1, 10**10)


@st.composite
def columns(draw: Any, count: int) -> list[tuple[int, ...]]:
    """So many columns of equal length, with anything in them."""
    rows = draw(st.lists(st.tuples(*[number] * count), max_size=6))
    return [tuple(row[at] for row in rows) for at in range(count)]


series = st.builds(
    lambda name, group, some: Collectives(
        name=name, group=group, start=some[0], length=some[1], elements=some[2]
    ),
    st.sampled_from(("all_reduce", "all_gather", "broadcast", "collective")),
    st.sampled_from(("", "0", "stream 7")),
    columns(3),
)
anything = st.builds(
    Profile,
    rank=st.integers(-1, 3),
    idle=number,
    steps=columns(2).map(lambda some: Steps(names=("1", "2"), start=some[0], end=some[1])),
    split=st.builds(Split, communication=number),
    collectives=st.lists(series, max_size=3).map(tuple),
    costs=st.lists(
        st.builds(cost, st.sampled_from(("communication", "host")), st.integers(0, 9), st.just(site("a"))),
        max_size=3,
    ).map(tuple),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(anything, min_size=1, max_size=3))
@example([Profile(steps=Steps(names=("1",), start=(0,), end=(1,)), split=Split(communication=1))])
def test_they_never_crash_and_never_claim_more_than_there_is(profiles: list[Profile]) -> None:
    hits = [*find_hits("GAP601", profiles[0]), *find_hits("GAP603", profiles[0])]
    assert all(
        0 <= hit.idle <= max(profiles[0].idle, sum(cost.idle for cost in profiles[0].costs)) for hit in hits
    )
    for hit in [*hits, *across(profiles)]:
        assert all(text and not text.endswith(".") for text in hit.evidence)
        assert hit.remedy
