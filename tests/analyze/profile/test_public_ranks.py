"""Ranks in public traces. What is expected was read off the files: when the kernels of each collective began
and ended on each rank."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from gapless.analyze.collectives.ranks import (
    compare_ranks,
    group_runs,
    missing_rank_notes,
    position_of_straggler,
    summarize_ranks,
)
from gapless.model import Profile
from gapless.rules import rule

Get = Callable[[str], Profile]

DLRM = (
    "worker0_step_12.1694128201545-b35a",
    "worker1_step_12.1694128201556-26e8",
    "worker2_step_12.1694128201554-0038",
    "worker3_step_12.1694128201557-5256",
)
TWO = ("pid85866-fa7b", "pid85867-8c72")
FOUR = ("pid24049-eeda", "pid24050-66ac", "pid24051-5c94", "pid24052-3e81")
SINGLE = (
    "worker0.1623143089861-9b36",
    "worker0.1623212756351-288e",
    "nccl_data-5a2e",
    "resnet_act_checkpoint-7ad4",
)


@pytest.fixture
def mixed(public_profile: Get) -> list[Profile]:
    public_profiles = [public_profile(name) for name in (*DLRM, *TWO, *FOUR, *SINGLE)]
    random.Random(3).shuffle(public_profiles)
    return public_profiles


def ends(some: list[list[Profile]]) -> set[tuple[str, ...]]:
    names = (*DLRM, *TWO, *FOUR, *SINGLE)
    return {tuple(next(n for n in names if f"{n}." in report.path) for report in run) for run in some}


def test_three_runs_and_single_processes_are_separated(mixed: list[Profile]) -> None:
    assert ends(group_runs(mixed)) == {DLRM, TWO, FOUR, *((name,) for name in SINGLE)}


def test_even_if_the_files_did_not_say_which_rank_they_are(mixed: list[Profile]) -> None:
    bare = [msgspec.structs.replace(profile, rank=-1, world_size=0) for profile in mixed]
    runs = {tuple(sorted(names)) for names in ends(group_runs(bare))}
    assert runs == {DLRM, TWO, FOUR, *((name,) for name in SINGLE)}


def test_a_rank_that_is_a_second_late_in_every_step(public_profile: Get) -> None:
    """In each of three steps an all-to-all takes 1008 ms on ranks 0, 1 and 3, and 12 ms on rank 2."""
    profiles = [public_profile(name) for name in FOUR]
    assert position_of_straggler(profiles) == 2
    rows = summarize_ranks(profiles)
    assert 990e6 < rows[2].late < 1050e6
    assert all(row.late < 10e6 for row in rows if row.rank != 2)
    (hit,) = rule("GAP602").of_ranks(compare_ranks(profiles))
    assert hit.rank == 2
    assert 2950e6 < hit.idle < 3050e6
    assert "running sparse arch" in " ".join(hit.evidence)


def test_a_rank_that_is_two_milliseconds_late_in_every_step(public_profile: Get) -> None:
    """Every all-to-all takes 8 to 39 µs on rank 1, and 0.3 to 1.6 ms on rank 0."""
    profiles = [public_profile(name) for name in TWO]
    assert position_of_straggler(profiles) == 1
    assert [round(row.late / 1e6, 1) for row in summarize_ranks(profiles)] == [0.0, 2.1]


def test_one_step_with_small_differences_names_nobody(public_profile: Get) -> None:
    """The 7 ms by which rank 2 is late to the first collective arose before the recording."""
    profiles = [public_profile(name) for name in DLRM]
    assert position_of_straggler(profiles) == -1
    assert all(row.late < 1e6 for row in summarize_ranks(profiles))
    assert missing_rank_notes(profiles) == (
        "only 4 of the run's 8 ranks are here: a missing rank may be slower",
    )


@pytest.mark.parametrize(
    ("name", "count"), [("df_index_resolver-9a5a", 259), ("nccl_data-5a2e", 0), ("pid24049-eeda", 0)]
)
def test_gradients_sent_one_by_one(public_profile: Get, name: str, count: int) -> None:
    hits = list(rule("GAP603").of_profile(public_profile(name)))
    assert [hit.evidence[0].split()[0] for hit in hits] == ([str(count)] if count else [])
