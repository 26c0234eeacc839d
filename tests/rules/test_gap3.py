"""Rules of input: what makes them speak, what they say, and what must leave them silent."""

from __future__ import annotations

import pytest
from rules.profiles import (
    MS,
    SINGLE,
    WORKERS,
    cost,
    find_hits,
    library,
    only,
    profile,
    said,
    site,
    user,
)

from gapless.analyze.loaders import findings
from gapless.model import Profile
from gapless.model.loader_use import LoaderUse
from gapless.model.loading_mistakes import Mistake
from gapless.model.profile import PhaseTime, Split
from gapless.rules import rule


class TestStarvedInput:
    def test_without_workers(self) -> None:
        starved = cost("input", 240, site(SINGLE, 7), calls=6, blocked=240 * MS, steps=6, start=5, end=9)
        hit = only("GAP301", profile(starved, phases=(PhaseTime(name="loading", host=252 * MS),)))
        assert hit.evidence == (
            "the GPU idles 40 ms of each 100 ms step, 40 %, until the next batch arrives",
            "`num_workers=0`: the training process makes every batch itself",
            "the CPU spends 42 ms of each 100 ms step, 42 %, in the loader",
        )
        assert "a batch takes 42 ms and the rest of a step 58 ms, so 1 worker can keep up" in hit.remedy
        assert hit.change == "`num_workers=1, persistent_workers=True`"
        assert (hit.idle, hit.calls, hit.steps) == (240 * MS, 6, 6)
        assert hit.blocked == 240 * MS
        assert (hit.start, hit.end) == (5, 9)
        assert hit.site is not None
        assert hit.site.line == user(7)

    def test_several_workers_are_needed_where_the_batch_takes_most_of_the_step(self) -> None:
        hit = only("GAP301", profile(cost("input", 480, site(SINGLE, 7), steps=6)))
        assert "a batch takes 80 ms and the rest of a step 20 ms, so 4 workers can keep up" in hit.remedy

    def test_a_part_of_a_worker_is_a_whole_one(self) -> None:
        hit = only("GAP301", profile(cost("input", 330, site(SINGLE, 7), steps=6)))
        assert "a batch takes 55 ms and the rest of a step 45 ms, so 2 workers can keep up" in hit.remedy

    def test_no_number_of_workers_is_named_where_there_is_no_other_work(self) -> None:
        hit = only("GAP301", profile(cost("input", 599, site(SINGLE, 7), steps=6)))
        assert "because they take nearly the whole step" in hit.remedy
        assert "keep up" not in hit.remedy

    def test_workers_that_are_too_slow(self) -> None:
        hit = only("GAP301", profile(cost("input", 90, site(WORKERS, 7), steps=6)))
        assert "15 ms of each 100 ms step, 15 %" in said(hit)
        assert "batches come from workers" in said(hit)
        assert "the workers do not keep up" in hit.remedy
        assert "num_workers=0" not in said(hit)

    def test_the_stack_tells_who_makes_the_batches_too(self) -> None:
        below = library("torch/utils/data/_utils/fetch.py", "_MapDatasetFetcher.fetch")
        hit = only("GAP301", profile(cost("input", 90, site("aten::stack", 7, below), steps=6)))
        assert "`num_workers=0`" in said(hit)

    def test_nothing_is_said_of_workers_where_nothing_tells(self) -> None:
        hit = only("GAP301", profile(cost("input", 90, site("enumerate(DataPipe)#Mapper"), steps=6)))
        assert len(hit.evidence) == 1
        assert hit.remedy == rule("GAP301").advice

    def test_a_late_first_batch_is_the_start_of_the_workers(self) -> None:
        hit = only("GAP301", profile(cost("input", 60, site(WORKERS, 7), steps=1)))
        assert "60 ms in 1 of 6 steps, 10 % of the time of all" in said(hit)
        assert "persistent_workers=True" in hit.remedy
        assert hit.change == "`persistent_workers=True`"

    def test_two_loaders_are_two_places(self) -> None:
        both = [cost("input", 60, site(SINGLE, 7), steps=6), cost("input", 30, site(WORKERS, 9), steps=6)]
        assert [hit.idle for hit in find_hits("GAP301", profile(*both))] == [60 * MS, 30 * MS]

    def test_costs_of_one_line_are_one_finding(self) -> None:
        twice = [
            cost("input", 60, site(SINGLE, 7), steps=6),
            cost("input", 30, site("aten::stack", 7), steps=5),
        ]
        assert only("GAP301", profile(*twice)).idle == 90 * MS

    @pytest.mark.parametrize("ms", [0, 0.5, 29])
    def test_a_small_part_of_the_step_is_left_alone(self, ms: float) -> None:
        assert not find_hits("GAP301", profile(cost("input", ms, site(SINGLE, 7), calls=6, blocked=300 * MS)))

    def test_a_loader_that_takes_long_while_the_gpu_works_costs_nothing(self) -> None:
        waits = cost("input", 0, site(SINGLE, 7), calls=6, blocked=400 * MS, steps=6)
        assert not find_hits("GAP301", profile(waits, phases=(PhaseTime(name="loading", host=400 * MS),)))


class TestCopyNotOverlapped:
    def copies(self, alone: float, batches: float) -> Profile:
        transfer = PhaseTime(name="transfer", device=round(batches * MS))
        return profile(split=Split(memcpy=round(alone * MS), kernel=100 * MS), phases=(transfer,))

    def test_copies_before_the_kernels(self) -> None:
        hit = only("GAP302", self.copies(90, 120))
        assert hit.evidence == (
            "only copies run on the GPU for 15 ms of each 100 ms step, 15 %",
            "copies to the GPU take 20 ms per step",
        )
        assert hit.idle == 0  # a device that copies is not idle

    def test_as_much_as_all_copies(self) -> None:
        assert "25 ms of each 100 ms step" in said(only("GAP302", self.copies(150, 150)))

    @pytest.mark.parametrize(("alone", "batches"), [(5, 300), (300, 5), (0, 0), (59, 59)])
    def test_copies_beside_kernels_or_within_the_device_are_left_alone(
        self, alone: float, batches: float
    ) -> None:
        assert not find_hits("GAP302", self.copies(alone, batches))


class TestMistakesOfALoader:
    @pytest.mark.parametrize("code", [f"GAP31{number}" for number in range(1, 9)])
    def test_observed_waits_are_reported_at_their_line(self, code: str) -> None:
        where = user(9)
        mistake = Mistake(
            code=code, name="n", seen="4 of 8 items come twice", remedy="divide them", line=where
        )
        use = LoaderUse(made=user(7), dataset="Lines", mistakes=(mistake,))
        (hit,) = rule(code).of_loader(use)
        assert (hit.evidence, hit.remedy) == (("4 of 8 items come twice",), "divide them")
        (finding,) = findings([use, use])  # one loader, gone through by two loops
        assert (finding.code, finding.line, finding.frequency.when) == (code, where, "no-steps")
        assert finding.change == rule(code).change

    def test_without_a_line_the_loader_is_named(self) -> None:
        mistake = Mistake(code="GAP312", name="n", seen="s", remedy="r")
        (finding,) = findings([LoaderUse(made=user(7), mistakes=(mistake,))])
        assert finding.line == user(7)
        (finding,) = findings([LoaderUse(dataset="Lines", mistakes=(mistake,))])
        assert (finding.line, finding.place) == (None, "a loader of Lines")
        assert not list(rule("GAP311").of_loader(LoaderUse(mistakes=(mistake,))))
