"""Several profiles: which are ranks of one run, when each arrives, and which one the others wait for."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_ranks import EPOCH, MS, simulated

from gapless.analyze.collectives.meetings import (
    Meetings,
    collectives_by_group,
    find_meetings,
    number_ranks,
    rank_in_name,
)
from gapless.analyze.collectives.pairing import match_kernels
from gapless.analyze.collectives.ranks import (
    group_ranks,
    group_runs,
    missing_rank_notes,
    position_of_straggler,
    summarize_ranks,
)
from gapless.model import Profile
from gapless.model.profile import Collectives, Split, Steps

change = msgspec.structs.replace


def always(extra: int) -> Callable[[int, int], int]:
    return lambda step, number: extra


def members(profiles: Sequence[Profile]) -> list[list[str]]:
    return [[report.path for report in run] for run in group_runs(profiles)]


class TestRuns:
    def test_ranks_that_say_so_and_meet_are_one_run(self) -> None:
        profiles = simulated()
        assert group_runs(profiles[::-1]) == [profiles]

    def test_one_profile_is_a_run(self) -> None:
        profiles = simulated()[:1]
        assert group_runs(profiles) == [profiles]
        assert group_runs([]) == []

    def test_two_runs_of_the_same_ranks_stay_apart(self) -> None:
        before = simulated(seed=1, folder="/before")
        after = simulated(seed=2, folder="/after", began=EPOCH + 3_600_000 * MS, work=8 * MS)
        assert group_runs([*after, *before]) == [before, after]
        assert any("up to 2 times" in note for note in group_ranks([*after, *before]).notes)

    def test_two_runs_in_one_folder_stay_apart(self) -> None:
        before = [change(report, path=report.path + "1") for report in simulated(seed=1)]
        after = [
            change(report, path=report.path + "2")
            for report in simulated(seed=2, began=EPOCH + 3_600_000 * MS)
        ]
        assert group_runs([*before, *after]) == [before, after]

    def test_consecutive_recordings_of_one_run_stay_apart(self) -> None:
        first = simulated(seed=1)
        second = [
            change(
                report,
                path=report.path.replace(".json", ".2.json"),
                steps=change(report.steps, names=tuple(f"ProfilerStep#{10 + n}" for n in range(5))),
            )
            for report in simulated(seed=2, began=EPOCH + first[0].span + MS)
        ]
        assert group_runs([*second, *first]) == [first, second]

    def test_half_of_each_of_two_runs_is_not_one(self) -> None:
        first = simulated(seed=1, folder="/one")[:2]
        other = simulated(seed=2, folder="/other", began=EPOCH + 60_000 * MS)[2:]
        assert group_runs([*first, *other]) == [first, other]

    def test_half_of_each_of_two_runs_with_clocks_that_say_nothing_is_not_one(self) -> None:
        """Clocks that count from when a machine started cannot be compared; collectives can."""
        first = simulated(seed=1, folder="/a", began=5 * MS, recorded=False)[:2]
        other = simulated(seed=2, folder="/b", began=900 * MS, recorded=False)[2:]
        assert group_runs([*first, *other]) == [first, other]

    def test_ranks_of_different_machines_are_one_run_whatever_their_clocks_say(self) -> None:
        profiles = simulated(clocks={1: 7_000 * MS, 3: -90_000 * MS})
        (run,) = group_runs(profiles)
        assert run == profiles

    def test_two_jobs_at_one_time_in_one_folder_stay_apart(self) -> None:
        first = simulated(seed=1)
        other = [change(each, path=each.path + "2") for each in simulated(seed=2, began=EPOCH + 3 * MS)]
        assert sorted(map(len, group_runs([*first, *other]))) == [4, 4]
        assert all(run in (first, other) for run in group_runs([*first, *other]))

    def test_the_same_collectives_a_day_later_are_others(self) -> None:
        profile, other = simulated(ranks=2, recorded=False)
        other = change(other, origin=other.origin + 86_400_000 * MS, path="/elsewhere/rank1.json")
        assert len(group_runs([profile, other])) == 2
        assert len(group_runs([profile, change(other, origin=profile.origin + 600_000 * MS)])) == 1

    def test_world_sizes_must_agree(self) -> None:
        profiles = simulated(ranks=2)
        assert len(group_runs([profiles[0], change(profiles[1], world_size=8)])) == 2

    def test_processes_without_ranks_are_one_run_if_their_collectives_are(self) -> None:
        profiles = [
            change(profile, path=f"/runs/host_{4000 + profile.rank}.json", rank=-1, world_size=0)
            for profile in simulated(names=("all_reduce", "all_gather"), sizes=False)
        ]
        grouping = group_ranks(profiles)
        assert grouping.runs == (tuple(profiles),)
        assert grouping.notes == (
            "host_4000.json and 3 other files are treated as ranks of one run, based on their collectives",
        )

    def test_processes_without_ranks_or_collectives_are_not(self) -> None:
        profiles = [Profile(path=f"/runs/{number}.json", origin=EPOCH, span=MS) for number in range(3)]
        assert len(group_runs(profiles)) == 3

    def test_files_named_for_ranks_in_one_folder_at_one_time(self) -> None:
        profiles = [Profile(path=f"/runs/rank{n}.json", origin=EPOCH, span=MS) for n in range(3)]
        grouping = group_ranks(profiles)
        assert grouping.runs == (tuple(profiles),)
        assert grouping.notes[0].endswith("based on their names and times")
        days_later = change(profiles[2], origin=EPOCH + 10**14)
        assert group_runs([*profiles[:2], days_later]) == [profiles[:2], [days_later]]
        elsewhere = change(profiles[2], path="/other/rank2.json")
        assert len(group_runs([*profiles[:2], elsewhere])) == 2

    def test_a_folder_for_each_rank(self) -> None:
        profiles = [Profile(path=f"/runs/rank_{n}/trace.json", origin=EPOCH, span=MS) for n in range(12)]
        assert group_runs(profiles) == [profiles]

    def test_single_process_profiles_are_never_ranks(self) -> None:
        profiles = [change(profile, world_size=1) for profile in simulated(ranks=2)]
        assert len(group_runs(profiles)) == 2

    @settings(max_examples=15, deadline=None)
    @given(st.randoms(use_true_random=False), st.integers(0, 3))
    def test_the_order_of_the_files_does_not_matter(self, chance: random.Random, seed: int) -> None:
        profiles = [
            *simulated(seed=seed, folder="/a"),
            *simulated(seed=seed + 9, folder="/b", began=EPOCH + 10**14, recorded=False),
            Profile(path="/c/other.json", origin=EPOCH, span=MS),
        ]
        expected = members(profiles)
        chance.shuffle(profiles)
        assert members(profiles) == expected
        assert sorted(map(len, expected)) == [1, 4, 4]

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    def test_every_file_is_in_one_run_and_no_rank_twice(self, picked: list[int]) -> None:
        world = [*simulated(), Profile(path="/x.json")]
        profiles = [world[at] for at in picked]
        runs = group_runs(profiles)
        assert sorted(profile.path for run in runs for profile in run) == sorted(
            profile.path for profile in profiles
        )
        assert all(len({report.path for report in run}) == len(run) for run in runs)


class TestRankNumbers:
    @pytest.mark.parametrize(
        ("path", "rank"),
        [
            ("rank3.json", 3),
            ("trace_rank_12.json.gz", 12),
            ("worker0.1623143089861.pt.trace.json", 0),
            ("run-TP-1-DECODE.trace.json", 1),
            ("/runs/rank-7/trace.json", 7),
            ("gpu2.json", 2),
            ("host_4711.1698.pt.trace.json", -1),
            ("resnet50_num_workers_4.json", -1),
            ("frank3.json", -1),
            ("rankings.json", -1),
            ("", -1),
        ],
    )
    def test_in_the_name_of_a_file(self, path: str, rank: int) -> None:
        assert rank_in_name(path) == rank

    def test_recorded_then_named_then_free(self) -> None:
        profiles = [
            Profile(path="b.json"),
            Profile(path="rank1.json"),
            Profile(path="rank9.json", rank=0),
            Profile(path="a.json"),
        ]
        assert number_ranks(profiles) == [3, 1, 0, 2]


class TestMeetings:
    def assert_met(self, meetings: Meetings, profiles: Sequence[Profile], count: int) -> None:
        assert len(meetings.matched) == count
        assert all(len(meeting.lengths) == len(profiles) for meeting in meetings.matched)

    def test_all_collectives_but_the_first(self) -> None:
        profiles = simulated()
        self.assert_met(find_meetings(profiles), profiles, 5 * 4 - 1)

    def test_the_lengths_are_those_of_the_same_collective(self) -> None:
        profiles = simulated(noise=5 * MS)
        for meeting, row in zip(find_meetings(profiles).matched, range(1, 20), strict=True):
            assert meeting.lengths == {
                at: profile.collectives[0].length[row] for at, profile in enumerate(profiles)
            }

    def test_where_files_begin_later_ends_are_what_they_have_in_common(self) -> None:
        profiles = simulated(late_files={1: 3, 2: 9}, clocks={1: 5 * MS, 2: -800 * MS}, sizes=False)
        matches = find_meetings(profiles).matched
        assert [len(match.lengths) for match in matches] == [2] * 2 + [3] * 6 + [4] * 11
        for meeting, row in zip(matches, range(1, 20), strict=True):
            for at, skipped in ((1, 3), (2, 9)):
                if at in meeting.lengths:
                    assert meeting.lengths[at] == profiles[at].collectives[0].length[row - skipped]

    def test_where_files_end_earlier(self) -> None:
        profiles = simulated(sizes=False)
        short = profiles[0].collectives[0]
        cut = {name: getattr(short, name)[:7] for name in ("start", "length", "elements")}
        profiles[0] = change(profiles[0], collectives=(change(short, **cut),))
        matches = find_meetings(profiles).matched
        assert [len(match.lengths) for match in matches] == [4] * 6 + [3] * 13

    @pytest.mark.parametrize("rate", [-3e-4, -5e-5, 5e-5, 3e-4])
    def test_clocks_that_drift(self, rate: float) -> None:
        profiles = simulated(steps=30, drift={1: rate}, sizes=False)
        self.assert_met(find_meetings(profiles), profiles, 30 * 4 - 1)

    def test_another_run_of_the_same_program_does_not_match(self) -> None:
        first, other = simulated(seed=1)[0], simulated(seed=2)[1]
        assert find_meetings([first, other]).matched == ()
        assert find_meetings([first, other]).alone == (0, 1)

    def test_other_sizes_do_not_match(self) -> None:
        first, other = simulated(ranks=2)
        series = other.collectives[0]
        sizes = tuple(2 * size for size in series.elements)
        other = change(other, collectives=(change(series, elements=sizes),))
        assert find_meetings([first, other]).matched == ()

    def test_all_to_all_may_send_different_amounts(self) -> None:
        first, other = simulated(ranks=2, names=("all_to_all",))
        series = other.collectives[0]
        other = change(other, collectives=(change(series, elements=tuple(range(20))),))
        assert len(find_meetings([first, other]).matched) == 19

    def test_broadcasts_and_point_to_point_do_not_tell(self) -> None:
        profiles = simulated(names=("broadcast",)) + simulated(names=("send_recv",))
        meetings = find_meetings(profiles)
        assert meetings.matched == ()
        assert meetings.silent == tuple(range(8))

    def test_too_few_to_be_sure(self) -> None:
        assert find_meetings(simulated(steps=1, each=2)).matched == ()

    def test_disjoint_sets_of_ranks_are_distinguished_without_groups(self) -> None:
        some = simulated(ranks=2, group="", seed=1, world=4)
        changes = [
            change(profile, rank=profile.rank + 2)
            for profile in simulated(ranks=2, group="", seed=2, world=4)
        ]
        meetings = find_meetings([*some, *changes])
        assert {frozenset(meeting.lengths) for meeting in meetings.matched} == {
            frozenset({0, 1}),
            frozenset({2, 3}),
        }

    def test_series_of_several_names_use_one_clock(self) -> None:
        profiles = simulated(steps=2, each=3, names=("all_reduce", "all_gather", "reduce_scatter"))
        assert len(find_meetings(profiles).matched) == 5

    def test_nothing_matches_nothing(self) -> None:
        assert match_kernels({}, {}, 0, proof=True) == {}
        assert find_meetings([]) == Meetings(())


class TestSummaries:
    def test_the_late_rank(self) -> None:
        """Rank 2 takes 3 ms longer before each of four collectives of a step."""
        profiles = simulated(slow={2: always(3 * MS)}, noise=0)
        rows = summarize_ranks(profiles[::-1])
        assert [row.rank for row in rows] == [0, 1, 2, 3]
        assert [row.path for row in rows] == [profile.path for profile in profiles]
        # The first of twenty collectives is left out: 19 of them in 5 steps.
        assert [row.late for row in rows] == [0, 0, 3 * MS * 19 / 5, 0]
        assert position_of_straggler(profiles) == 2
        assert position_of_straggler(profiles[::-1]) == 1

    def test_numbers_per_step(self) -> None:
        profile = Profile(
            rank=1,
            utilization=0.5,
            idle=20,
            steps=Steps(names=("a", "b"), start=(0, 50), end=(50, 100)),
            split=Split(communication=12),
        )
        (row,) = summarize_ranks([profile])
        assert (row.step, row.idle, row.communication, row.utilization, row.late) == (50, 10, 6, 0.5, -1)

    def test_ranks_that_are_equally_fast(self) -> None:
        profiles = simulated(noise=MS)
        assert position_of_straggler(profiles) == -1
        assert all(row.late < 4 * MS for row in summarize_ranks(profiles))

    def test_turns_are_no_slow_rank(self) -> None:
        profiles = simulated(
            steps=8,
            slow={rank: lambda step, number, rank=rank: 5 * MS * (step % 4 == rank) for rank in range(4)},
        )
        assert position_of_straggler(profiles) == -1

    def test_one_slow_step_of_many_is_no_slow_rank(self) -> None:
        assert position_of_straggler(simulated(slow={1: lambda step, number: 200 * MS * (step == 3)})) == -1

    def test_waiting_behind_computing_kernels_costs_nothing(self) -> None:
        assert position_of_straggler(simulated(slow={2: always(3 * MS)}, exposed=False)) == -1

    def test_a_margin_that_does_not_matter(self) -> None:
        assert position_of_straggler(simulated(slow={2: always(MS // 10)}, noise=0)) == -1

    def test_a_single_step_needs_more(self) -> None:
        assert position_of_straggler(simulated(steps=1, each=8, slow={2: always(MS // 2)}, noise=0)) == -1
        assert position_of_straggler(simulated(steps=1, each=8, slow={2: always(3 * MS)}, noise=0)) == 2

    def test_who_is_late_for_having_waited_elsewhere_is_not_blamed(self) -> None:
        """Ranks 0 and 1 share a group that meets before the one of all: 1 waits there and is late after."""
        pair, everyone = [], []
        for rank in range(4):
            inner_start, inner_length, outer_start, outer_length = [], [], [], []
            for step in range(6):
                begin = step * 40 * MS + step * step * 1000
                ready = begin + (15 * MS if rank == 0 else 5 * MS)
                if rank < 2:
                    inner_start.append(ready)
                    inner_length.append(begin + 16 * MS - ready)
                    ready = begin + 17 * MS + rank * 10
                outer_start.append(ready)
                outer_length.append(begin + 20 * MS - ready)
            pair.append(
                Collectives(
                    name="all_reduce", group="1", start=tuple(inner_start), length=tuple(inner_length)
                )
            )
            everyone.append(
                Collectives(
                    name="all_gather", group="0", start=tuple(outer_start), length=tuple(outer_length)
                )
            )
        bounds = [step * 40 * MS + step * step * 1000 for step in range(7)]
        profiles = [
            Profile(
                rank=rank,
                world_size=4,
                steps=Steps(names=tuple("abcdef"), start=tuple(bounds[:-1]), end=tuple(bounds[1:])),
                split=Split(communication=sum(everyone[rank].length) + sum(pair[rank].length)),
                collectives=(everyone[rank], *([pair[rank]] if rank < 2 else [])),
            )
            for rank in range(4)
        ]
        assert position_of_straggler(profiles) == 0

    @settings(max_examples=25, deadline=None)
    @given(
        st.integers(2, 6),
        st.integers(0, 5),
        st.integers(0, 8 * MS),
        st.randoms(use_true_random=False),
        st.dictionaries(st.integers(0, 5), st.integers(-(10**12), 10**12)),
    )
    def test_neither_order_nor_clocks_matter(
        self, ranks: int, slow: int, extra: int, chance: random.Random, clocks: dict[int, int]
    ) -> None:
        slow %= ranks
        same = simulated(ranks, slow={slow: always(extra)})
        moved = simulated(ranks, slow={slow: always(extra)}, clocks=clocks)
        expected = summarize_ranks(same)
        position = position_of_straggler(same)
        chance.shuffle(moved)
        assert summarize_ranks(moved) == expected
        at = position_of_straggler(moved)
        assert (moved[at].rank if at >= 0 else -1) == position
        assert position in (-1, slow)
        assert all(row.late >= 0 for row in expected)

    def test_a_thousand_ranks(self) -> None:
        """Linear: every rank is compared with one other only."""
        profiles = simulated(ranks=300, steps=3, slow={7: always(4 * MS)})
        assert position_of_straggler(profiles) == 7


class TestRemarks:
    def test_a_whole_run_has_none(self) -> None:
        assert missing_rank_notes(simulated()) == ()
        assert missing_rank_notes(simulated()[:1]) == ()

    def test_missing_ranks(self) -> None:
        (note,) = missing_rank_notes(simulated(world=16))
        assert note == "only 4 of the run's 16 ranks are here: a missing rank may be slower"

    def test_ranks_without_collectives_and_those_that_match_nobody(self) -> None:
        profiles = simulated(ranks=7)
        for at in (2, 3, 4):
            profiles[at] = change(profiles[at], collectives=())
        profiles[6] = change(simulated(ranks=7, seed=5)[6])
        notes = missing_rank_notes(profiles)
        assert notes[0] == "ranks 2-4 recorded no collective that shows when a rank arrives"
        assert notes[1].startswith("rank 6 recorded only collectives that match no other rank's")
        assert [row.late for row in summarize_ranks(profiles)].count(-1.0) == 4


def test_groups_of_a_profile_hold_only_what_tells_arrival() -> None:
    some = tuple(
        Collectives(name=name, start=(1,), length=(2,), elements=(3,))
        for name in ("all_reduce", "broadcast", "barrier", "collective")
    )
    assert set(collectives_by_group(Profile(collectives=some))[""]) == {"all_reduce", "barrier"}
