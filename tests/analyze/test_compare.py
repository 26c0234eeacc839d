"""Two runs side by side: what is said of them, and what is not."""

from __future__ import annotations

import msgspec
import pytest
from compared_profiles import (
    ADD,
    ADD_LATER,
    FAST_FINDINGS,
    MS,
    SLOW_FINDINGS,
    at,
    cost,
    fast,
    finding,
    kernel,
    line,
    slow,
    steps,
)
from hypothesis import given
from hypothesis import strategies as st
from sessions import Simulation

from gapless.analyze import report
from gapless.analyze.compare import ComparisonSide, compare_profiles, compare_reports, slowest, subject
from gapless.analyze.compare.device_time import MAX_KERNELS_LISTED
from gapless.analyze.compare.matching import (
    MAX_LINE_DRIFT,
    ComparedPlace,
    match_names,
    match_places,
    normalize_kernel_name,
)
from gapless.analyze.compare.verdict import judge_change
from gapless.analyze.tables.comparison_tables import tables
from gapless.model import Environment, Profile, Site, SourceLine
from gapless.model.comparison import Comparison, Measure, percents, scale
from gapless.model.profile import Collectives, KernelTime, Recording, Split

change = msgspec.structs.replace


def compared(before: Profile, after: Profile, **more: object) -> Comparison:
    findings = more.get("findings", ((), ()))
    return compare_profiles(
        ComparisonSide("before.json", before, findings[0]), ComparisonSide("after.json", after, findings[1])
    )


def by_name(rows: object) -> dict[str, object]:
    return {row.name: row for row in rows}


class TestTheWhole:
    def test_numbers_are_means_per_step(self):
        comparison = compared(slow(), fast())
        assert (comparison.per, comparison.length.before, comparison.length.after) == (
            "step",
            100 * MS,
            52 * MS,
        )
        assert comparison.length.percent == pytest.approx(-48)
        assert (comparison.idle.before, comparison.idle.after) == (60 * MS, 15 * MS)
        causes = by_name(comparison.causes)
        assert list(causes) == ["input", "wait", "host"]
        assert causes["input"].after == pytest.approx(20 / 6 * MS)
        assert sum(row.before for row in comparison.causes) == pytest.approx(comparison.idle.before)
        assert sum(row.before for row in comparison.split) == pytest.approx(comparison.length.before)

    def test_unequal_numbers_of_steps_compare_by_the_step(self):
        """Twice the steps with twice the totals are the same run."""
        profile = slow()
        twice = change(
            profile,
            steps=steps([100, 100, 99, 101, 100, 100] * 2),
            idle=2 * profile.idle,
            split=Split(kernel=460 * MS, memcpy=20 * MS, loading=600 * MS, host=120 * MS),
            kernels=tuple(change(k, total=2 * k.total, calls=2 * k.calls) for k in profile.kernels),
            lines=tuple(change(row, total=2 * row.total) for row in profile.lines),
            costs=tuple(change(row, idle=2 * row.idle) for row in profile.costs),
        )
        comparison = compared(profile, twice)
        assert comparison.length.change == 0
        for rows in (comparison.split, comparison.causes):
            assert all(row.change == pytest.approx(0) for row in rows)
        for rows in (comparison.kernels, comparison.operators, comparison.lines):
            assert {row.state for row in rows} == {"same"}
        assert comparison.sentence.startswith(
            "The step takes 100 ms as before; the GPU is idle for 60 ms of it, as"
        )

    def test_sentence(self):
        assert compared(slow(), fast()).sentence == (
            "The step takes 52 ms instead of 100: 48 % less; the GPU is idle for 15 ms of it instead of 60 "
            "(input: 3.33 ms instead of 48.3)"
        )
        assert compared(fast(), slow()).sentence.startswith("The step takes 100 ms instead of 52: 92 % more;")

    def test_from_twice_on_it_is_times(self):
        slower = change(slow(), steps=steps([250] * 6))
        assert "The step takes 250 ms instead of 100: 2.5 times as long" in compared(slow(), slower).sentence

    def test_a_cause_is_named_only_where_it_is_most_of_the_change(self):
        spread = change(fast(), costs=(cost("input", at(30), 245), cost("wait", at(60), 0)))
        assert "(" not in compared(slow(), change(spread, idle=100 * MS)).sentence

    def test_without_device_idleness_nothing_is_said_of_it(self):
        busy = change(slow(), idle=0, costs=())
        assert compared(busy, busy).sentence == "The step takes 100 ms as before"

    def test_without_steps_whole_traces_are_compared(self):
        before = change(slow(), steps=steps([678], "span"))
        after = change(fast(), steps=steps([485], "span"))
        comparison = compared(before, after)
        assert comparison.per == "trace"
        assert comparison.sentence.startswith("The whole trace takes 485 ms instead of 678: 28 % less")
        assert (comparison.before.steps, comparison.before.spread, comparison.within_spread) == (
            0,
            None,
            False,
        )
        assert "no steps are marked" in comparison.notes[0]

    def test_steps_on_one_side_only(self):
        comparison = compared(slow(), change(fast(), steps=steps([485], "span")))
        assert (comparison.per, comparison.length.before) == ("trace", 600 * MS)
        assert comparison.notes[0].startswith(
            "after has no steps marked: all 6 steps of before are compared with"
        )

    def test_phases_and_other_numbers(self):
        comparison = compared(slow(), fast())
        forward = by_name(comparison.phases)["forward"]
        assert (forward.host.before, forward.device.after) == (20 * MS, pytest.approx(82 / 6 * MS))
        measures = by_name(comparison.measures)
        assert measures["GPU utilization"].change == pytest.approx(0.3)
        assert measures["device operations"].before == 31
        assert "est. SM efficiency" not in measures
        assert "graph launches" not in measures

    def test_what_one_side_does_not_know_has_no_change(self):
        comparison = compared(change(slow(), utilization=-1.0), fast())
        row = by_name(comparison.measures)["GPU utilization"]
        assert (row.known, row.change, row.percent) == (False, 0.0, None)

    def test_empty_profiles(self):
        comparison = compared(Profile(), Profile())
        assert comparison.per == "trace"
        assert comparison.length.percent is None


class TestSpread:
    def test_from_five_steps_on(self):
        assert compared(change(slow(), steps=steps([1, 2, 3, 4])), slow()).before.spread is None
        spread = compared(change(slow(), steps=steps([5, 1, 3, 2, 4])), slow()).before.spread
        assert (spread.steps, spread.low, spread.median, spread.high) == (5, 2 * MS, 3 * MS, 4 * MS)

    def test_a_change_within_it_is_said_to_be(self):
        before = change(slow(), steps=steps([90, 95, 100, 105, 110, 100]))
        after = change(slow(), steps=steps([92, 97, 102, 107, 112, 102]))
        comparison = compared(before, after)
        assert comparison.within_spread
        assert "102 ms instead of 100: 2.0 % more, but within the spread of the steps" in comparison.sentence

    def test_few_steps_that_lie_among_one_another_say_little(self):
        few = [change(slow(), steps=steps(lengths)) for lengths in ([98, 102, 101], [99, 103, 97, 98])]
        assert compared(*few).within_spread
        assert compared(*reversed(few)).within_spread
        assert not compared(few[0], change(slow(), steps=steps([94, 97, 95]))).within_spread
        assert not compared(few[0], change(slow(), steps=steps([100.5]))).within_spread

    def test_only_what_matters_to_the_step_is_good_or_bad(self):
        def split(copies: float, kernels: float) -> Profile:
            busy = Split(kernel=round(kernels * MS), memcpy=round(copies * MS))
            return change(slow(), split=busy)

        comparison = compared(split(1, 300), split(1.5, 200))
        (times,) = (table for table in tables(comparison) if table.title.startswith("Time per step"))
        tones = {row.cells[0]: row.tone for row in times.rows}
        assert (tones["kernels"], tones["copies"]) == ("good", "")

    def test_steady_steps_make_a_small_change_count(self):
        comparison = compared(change(slow(), steps=steps([100] * 6)), change(slow(), steps=steps([102] * 6)))
        assert not comparison.within_spread

    def test_one_side_with_few_steps(self):
        wide = change(slow(), steps=steps([80, 90, 100, 110, 120]))
        assert compared(wide, change(slow(), steps=steps([105]))).within_spread
        assert compared(change(slow(), steps=steps([105])), wide).within_spread
        assert not compared(
            change(slow(), steps=steps([90])), change(slow(), steps=steps([91]))
        ).within_spread

    def test_a_long_step_that_moves_the_mean_is_pointed_out(self):
        report = compared(
            change(slow(), steps=steps([100] * 9 + [900])), change(slow(), steps=steps([100] * 10))
        )
        assert "a few long steps dominate the means: the median step takes as long as before" in report.notes


class TestNotes:
    @pytest.mark.parametrize(
        ("after", "note"),
        [
            ({"gpu": "Tesla T4"}, "before ran on NVIDIA A100-SXM4-80GB, after on Tesla T4"),
            ({"gpu": "", "vendor": "amd"}, "different vendors"),
            (
                {"recording": Recording()},
                "only before was recorded with stacks, which slows the CPU down there",
            ),
            (
                {"recording": Recording(stacks="frames", with_memory=True)},
                "allocations were recorded after only",
            ),
            (
                {"recording": Recording(stacks="frames", overhead=90 * MS)},
                "the profiler itself takes 0.0 % of the time before and 29 % after",
            ),
            ({"recording": Recording(stacks="frames", truncated=True)}, "the trace of after is cut off"),
            ({"steps": steps([52, 52])}, "before has 6 steps, after has 2"),
            ({"steps": steps([52] * 30)}, "before has 6 steps, after has 30"),
            ({"steps": steps([52] * 6, "Optimizer.step#SGD.step")}, "before marks steps with ProfilerStep"),
            ({"notes": ("3 events were cut off",)}, "after: 3 events were cut off"),
        ],
    )
    def test_what_makes_it_hard_to_compare_is_said(self, after, note):
        assert any(note in warning for warning in compared(slow(), change(fast(), **after)).notes)

    def test_another_number_of_ranks(self):
        report = compared(change(slow(), world_size=8), change(fast(), world_size=4))
        assert "before ran on 8 ranks, after on 4" in report.notes

    def test_the_same_trace_twice(self):
        assert compared(slow(), slow()).notes == ("both sides are the same capture",)

    def test_nothing_where_there_is_nothing_to_say(self):
        assert compared(slow(), fast()).notes == ()


class TestRanks:
    def ranks(self, lengths: list[list[int]]) -> list[Profile]:
        """Profiles that meet in three collectives, where each spends so many microseconds."""
        ends = (50 * MS, 150 * MS, 250 * MS)
        return [
            change(
                slow(),
                path=f"rank{rank}.json",
                rank=rank,
                world_size=len(lengths),
                collectives=(
                    Collectives(
                        name="all_reduce",
                        group="0",
                        start=tuple(end - 1000 * took for end, took in zip(ends, mine, strict=True)),
                        length=tuple(1000 * took for took in mine),
                        elements=(10, 20, 30),
                    ),
                ),
            )
            for rank, mine in enumerate(lengths)
        ]

    def test_the_last_rank_to_arrive_represents_all(self):
        waited = [[9000] * 3, [100] * 3, [9500] * 3]
        assert slowest(self.ranks(waited)) == 1

    def test_without_collectives_the_longest_steps_decide(self):
        profiles = [change(slow(), path=f"{i}", steps=steps([n] * 3)) for i, n in enumerate((5, 9, 7))]
        assert slowest(profiles) == 1
        assert slowest([slow()]) == 0

    def test_it_is_said(self):
        warnings = []

        def findings(profiles: object) -> tuple:
            warnings.append([profile.rank for profile in profiles])
            return SLOW_FINDINGS

        side = subject("runs", self.ranks([[9000] * 3, [100] * 3]), findings)
        assert (side.profile.rank, side.files, side.findings) == (1, 2, SLOW_FINDINGS)
        assert warnings == [[1, 0]]
        comparison = compare_profiles(side, ComparisonSide("fast.json", fast()))
        assert "before: rank 1, the slowest of 2 traces, represents them" in comparison.notes
        assert (comparison.before.name, comparison.before.rank, comparison.before.files) == ("runs", 1, 2)


class TestKernels:
    def test_names_that_differ_in_what_compilers_change_are_one(self):
        profile = compared(slow(), fast())
        assert len({normalize_kernel_name(ADD), normalize_kernel_name(ADD_LATER)}) == 1
        row = by_name(profile.kernels)[ADD_LATER]
        assert (row.state, row.was, row.operator, row.calls_before) == ("same", ADD, "aten::add", 20)

    def test_gone_and_new(self):
        rows = by_name(compared(slow(), fast()).kernels)
        assert (rows["cub_nonzero"].state, rows["where_kernel"].state) == ("gone", "new")
        assert by_name(compared(slow(), fast()).operators)["aten::nonzero"].state == "gone"
        assert compared(slow(), fast()).kernels[0].name == "cub_nonzero"

    def test_what_a_cut_list_leaves_out_is_not_called_gone(self):
        many = tuple(
            kernel(f"gemm{chr(65 + i % 26)}{i // 26}_x", 6, 6, "aten::mm") for i in range(MAX_KERNELS_LISTED)
        )
        after = change(fast(), kernels=many, split=Split(kernel=6 * MAX_KERNELS_LISTED * MS))
        rows = by_name(compared(slow(), after).kernels)
        gone = rows["cub_nonzero"]
        assert (gone.state, gone.after, gone.at_most) == ("less", -1, 1 * MS)
        operators = by_name(compared(slow(), after).operators)
        assert operators["aten::nonzero"].state == "less"
        assert operators["aten::mm"].calls_after == -1

    def test_what_is_missing_in_a_cut_list_may_explain_an_operators_change(self):
        """120 ms of kernels are not listed: an operator that lost 20 ms may be among them."""
        many = tuple(
            kernel(f"gemm{chr(65 + i % 26)}{i // 26}_x", 6, 6, "aten::mm") for i in range(MAX_KERNELS_LISTED)
        )
        after = change(fast(), kernels=many, split=Split(kernel=(6 * MAX_KERNELS_LISTED + 120) * MS))
        assert by_name(compared(slow(), after).operators)["aten::nonzero"].state == "same"

    @pytest.mark.parametrize(
        ("name", "other"),
        [
            ("void f<float, 4>(int)", "void f<float, 4ul>(float*, int)"),
            ("void a::(anonymous namespace)::f<c10::Half>(int)", "void a::<unnamed>::f<__half>(int)"),
            ("triton_poi_fused_add_mul_3", "triton_poi_fused_add_mul_12"),
            ("triton_red_fused_mean_5_0d1d2d3de", "triton_red_fused_mean_5"),
            (
                "void g<k(T&)::{lambda()#1}::operator()() const::{lambda(float)#1}>(int)",
                "void g<k(T&)::{lambda()#2}::operator()() const::{lambda(float)#4}>(int)",
            ),
        ],
    )
    def test_spelled_alike(self, name, other):
        assert normalize_kernel_name(name) == normalize_kernel_name(other)

    @pytest.mark.parametrize(
        ("name", "other"),
        [
            ("void f<float>(int)", "void f<c10::Half>(int)"),
            ("void f<AddFunctor>(int)", "void f<MulFunctor>(int)"),
            ("void g<k(T&)::{lambda(int)#1}>(int)", "void g<k(T&)::{lambda(bool)#1}>(int)"),
            ("ampere_sgemm_128x64_tn", "ampere_sgemm_64x64_tn"),
            ("triton_poi_fused_add_3", "triton_poi_fused_mul_3"),
        ],
    )
    def test_spelled_apart(self, name, other):
        assert match_names([name], [other]) == [([0], []), ([], [0])]

    def test_widths_match_only_what_has_no_exact_counterpart(self):
        wide, narrow = "void f<4, float>(int)", "void f<2, float>(int)"
        assert match_names([wide], [narrow]) == [([0], [0])]
        assert match_names([wide, narrow], [narrow]) == [([1], [0]), ([0], [])]

    @given(st.lists(st.text("fg<>(), 1234abul:", max_size=12), unique=True, max_size=8), st.randoms())
    def test_each_name_is_in_one_group(self, names, random):
        other = random.sample(names, len(names) // 2)
        groups = match_names(names, other)
        assert sorted(i for left, _ in groups for i in left) == list(range(len(names)))
        assert sorted(j for _, right in groups for j in right) == list(range(len(other)))
        for j, name in enumerate(other):
            assert next(left for left, right in groups if j in right) == [names.index(name)]


def place(number: int, function: str = "f", file: str = "/a/t.py", code: str = "", kind: str = "GAP112"):
    return ComparedPlace(kind, SourceLine(file, number, function, code))


class TestPlaces:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (place(10), place(10 + MAX_LINE_DRIFT)),
            (place(10), place(400)),  # the only one of its kind in the function, before and after
            (place(10, code="x[m]"), place(400, code="x[m]")),
            (place(10, code="x[m]"), place(12, code="x[m].sum()")),
            (place(10, "old", code="x[m]"), place(12, "new", code="x[m]")),
            (place(10, ""), place(12)),
            (place(10, file="/u/a/proj/t.py"), place(10, file="/u/b/proj/t.py")),
            (place(10, file="/u/before/t.py"), place(10, file="C:\\after\\t.py")),
            (
                ComparedPlace("GAP112", None, "aten::index"),
                ComparedPlace("GAP112", None, "aten::index in forward"),
            ),
        ],
    )
    def test_the_same(self, before, after):
        assert match_places([before], [after]) == [(0, 0)]

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (place(10), place(10, kind="GAP101")),
            (place(10), place(10, file="/a/u.py")),
            (place(10), place(11, "g")),
            (place(10, ""), place(11 + MAX_LINE_DRIFT, "")),
            (place(10, code="x[m]"), place(400, code="y[n]")),
            (ComparedPlace("GAP112", None, "aten::index"), ComparedPlace("GAP112", None, "aten::nonzero")),
            (ComparedPlace("GAP112", None, "aten::index"), place(10)),
        ],
    )
    def test_not_the_same(self, before, after):
        assert match_places([before], [after]) == [(0, None), (None, 0)]

    def test_the_text_of_a_line_says_more_than_its_number(self):
        before = [place(10, code="a[m]"), place(14, code="b[m]")]
        after = [place(14, code="a[m]"), place(18, code="b[m]")]
        assert match_places(before, after) == [(0, 0), (1, 1)]

    def test_the_file_itself_says_more_than_its_name(self):
        before = [place(10, file="/p/one/__init__.py"), place(10, file="/p/two/__init__.py")]
        assert match_places(before, before[::-1]) == [(0, 1), (1, 0)]

    def test_what_one_side_has_more_of_is_paired_by_nearness_alone(self):
        assert match_places([place(10)], [place(300), place(12)]) == [(0, 1), (None, 0)]

    @given(
        st.lists(
            st.builds(
                place,
                st.integers(1, 60),
                st.sampled_from("fg"),
                st.sampled_from(["/a/t.py", "/b/t.py", "/a/u.py"]),
                st.sampled_from(["", "x", "y"]),
            ),
            unique=True,
            max_size=8,
        ),
        st.randoms(),
    )
    def test_one_to_one_and_each_to_itself(self, places, random):
        other = random.sample(places, len(places))
        pairs = match_places(places, other)
        assert [other[j] for _, j in sorted(pairs)] == places


def sides(texts: list[tuple[str, str]], at: list[int]) -> tuple[ComparedPlace, ...]:
    return tuple(
        place(number, function, code=text) for (function, text), number in zip(texts, at, strict=True)
    )


TEXTS = st.lists(
    st.tuples(st.sampled_from("fg"), st.sampled_from(["x.item()", "x[m]", "print(x)"])), max_size=9
)


class TestWhatIsNew:
    """Places of findings: what they are is their identity, and not where they stand."""

    @given(TEXTS, st.randoms())
    def test_lines_that_were_moved_are_no_new_ones(self, texts, random):
        numbers = random.sample(range(1, 500), len(texts))
        before = sides(texts, numbers)
        after = sides(random.sample(texts, len(texts)), random.sample(range(1, 500), len(texts)))
        assert all(i is not None and j is not None for i, j in match_places(before, after, edited=False))

    @given(TEXTS, st.sampled_from("fg"), st.sampled_from(["x.item()", "y.item()", "x[m]"]), st.randoms())
    def test_one_that_was_added_is_one_new_one(self, texts, function, text, random):
        before = sides(texts, random.sample(range(1, 500), len(texts)))
        more = random.sample([*texts, (function, text)], len(texts) + 1)
        after = sides(more, random.sample(range(1, 500), len(more)))
        (new,) = (j for i, j in match_places(before, after, edited=False) if i is None)
        assert after[new].line.code == text

    @given(st.lists(st.integers(1, 300), unique=True, max_size=8), st.integers(-150, 150), st.integers(0, 8))
    def test_without_their_text_lines_move_with_their_function(self, numbers, by, at):
        before = [place(number) for number in numbers]
        after = [place(number + by) for number in numbers]
        assert all(i is not None and j is not None for i, j in match_places(before, after, edited=False))
        # Further off than the lines are from one another: else another shift fits as well.
        added = place(max(numbers, default=1) + by + 300 + MAX_LINE_DRIFT)
        pairs = match_places(before, [*after[:at], added, *after[at:]], edited=False)
        (new,) = (j for i, j in pairs if i is None) if len(numbers) > 1 else (at,)
        assert new == min(at, len(after)) or len(numbers) < 2

    @pytest.mark.parametrize(
        ("name", "other", "same"),
        [
            ("x[m]", "x[ m ]", True),
            ("x[m]  # border", "x[m]", True),
            ("foo(x.item(),", "foo(x.item(),", True),
            ("foo(x.item(),", "foo(y.item(),", False),
            ("x.item()", "y.item()", False),
            ('print("a  b", x)', 'print("a b", x)', False),
        ],
    )
    def test_spaces_and_comments_are_no_words(self, name, other, same):
        assert (
            match_places([place(10, code=name)], [place(11, code=other)], edited=False) == [(0, 0)]
        ) == same

    def test_a_file_of_another_name(self):
        before, after = place(10, code="x[m]"), place(90, file="/b/loop.py", code="x[m]")
        assert match_places([before], [after], edited=False) == [(0, 0)]
        other = place(90, "g", "/b/loop.py", "x[m]")
        assert match_places([before], [other], edited=False) == [(0, None), (None, 0)]


class TestLinesAndFindings:
    def test_lines_are_followed_through_an_edit(self):
        finding = compared(slow(), fast())
        batch = finding.lines[0]
        assert (batch.was.line, batch.line.line, batch.state) == (30, 33, "less")
        assert (batch.idle_before, batch.idle_after) == (
            pytest.approx(290 / 6 * MS),
            pytest.approx(20 / 6 * MS),
        )
        assert {row.line.line for row in finding.lines if row.state == "same"} == {43, 73}

    def test_a_line_that_costs_nothing_any_more_is_not_gone(self):
        after = change(fast(), costs=(), lines=(line(at(30), 0),))
        rows = {row.was.line: row.state for row in compared(slow(), after).lines if row.was}
        assert (rows[30], rows[70]) == ("less", "gone")

    def test_places_without_a_line_have_their_idleness_alone(self):
        here, second = (Site(operator=name, mechanism="size") for name in ("aten::index", "aten::item"))
        before = change(
            slow(), costs=(cost("wait", here, 60), cost("wait", second, 60)), lines=(line(here, 9),)
        )
        after = change(slow(), costs=(cost("wait", here, 6),), lines=())
        rows = {row.place: row for row in compared(before, after).lines}
        assert {name: row.state for name, row in rows.items()} == {
            "aten::index": "less",
            "aten::item": "gone",
        }
        assert rows["aten::index"].device_before == -1
        assert (rows["aten::index"].was, rows["aten::index"].line) == (None, None)

    def test_findings(self):
        report = compared(slow(), fast(), findings=(SLOW_FINDINGS, FAST_FINDINGS))
        states = {row.finding.code: row.state for row in report.findings}
        assert states == {"GAP112": "gone", "GAP130": "new", "GAP301": "less", "GAP101": "same"}
        assert [row.state for row in report.findings] == ["gone", "new", "less", "same"]
        less = report.findings[2]
        assert less.idle_before == pytest.approx(290 / 6 * MS)
        assert less.calls_after == 1

    def test_findings_without_cost_show_their_calls(self):
        report = compared(
            slow(), fast(), findings=((finding("GAP101", at(80), 0, 60),), (finding("GAP101", at(80), 0, 6),))
        )
        assert (report.findings[0].state, report.findings[0].calls_after) == ("less", 1)

    def test_a_finding_of_the_whole_run(self):
        whole = finding("GAP501", None, 30)
        assert compared(slow(), slow(), findings=((whole,), (whole,))).findings[0].state == "same"


class TestSessions:
    def run(self, masks: int, steps: int = 12, **fields: object):
        simulation = Simulation(code={50: "print(loss.item())", 60: "x = x[mask]"})
        simulation.wait(5, times=60, operator="cudaMemcpyAsync", mechanism="h2d", detail="pageable", call="")
        for step in range(steps):
            if step % 3 == 0:
                simulation.wait(50)
            for _ in range(masks):
                simulation.wait(60, operator="aten::nonzero", mechanism="size", call="")
            simulation.step(95)
        return report(simulation.session(**fields), lambda file: "")

    def test_waits_per_step(self):
        comparison = compare_reports(("a.json", self.run(2)), ("b.json", self.run(0)))
        assert (comparison.of, comparison.per, comparison.length.unit) == ("sessions", "step", "waits")
        assert comparison.length.change == pytest.approx(-2)
        assert (
            comparison.sentence
            == "3 syncs in 10 training steps instead of 2.3 syncs per step; 1 finding gone"
        )
        assert [row.state for row in comparison.findings].count("gone") == 1

    def test_a_script_under_another_name_is_the_same_script(self):
        def renamed(finding):
            return change(
                finding, line=change(finding.line, file=finding.line.file.replace("train.py", "fixed.py"))
            )

        before = self.run(2)
        after = self.run(1, script=("/elsewhere/fixed.py",))
        after = change(after, findings=tuple(renamed(finding) for finding in after.findings))
        report = compare_reports(("a", before), ("b", after))
        assert [row.state for row in report.findings] == ["less", "same", "same"]
        assert report.findings[0].after.line.file == "/work/fixed.py"
        assert "two different scripts are compared" in report.notes

    def test_every_third_step_is_that_however_many_were_looked_at(self):
        report = compare_reports(("a", self.run(0, 12)), ("b", self.run(0, 13)))
        assert {row.state for row in report.findings} == {"same"}

    def test_no_waits_any_more(self):
        simulation = Simulation()
        for _ in range(12):
            simulation.step(95)
        comparison = compare_reports(("a", self.run(1)), ("b", report(simulation.session(), lambda file: "")))
        assert comparison.sentence.startswith("No syncs per training step instead of ")
        assert comparison.length.after == 0

    def test_as_before(self):
        report = compare_reports(("a", self.run(1)), ("b", self.run(1)))
        assert report.sentence.endswith("per training step, as before")
        assert report.notes == ()

    def test_without_steps_the_runs_are_compared(self):
        comparison = compare_reports(("a", self.run(1)), ("b", self.run(3, 0)))
        assert (comparison.per, comparison.length.before) == ("run", 76)
        assert "after took no training step: the syncs of the whole runs are compared" in comparison.notes

    def test_obstacles_to_a_comparison_are_reported(self):
        other = self.run(1, script=("eval.py",), environment=Environment(device="Tesla T4", torch="2.4"))
        notes = " ".join(compare_reports(("a", self.run(1)), ("b", other)).notes)
        assert "two different scripts" in notes
        assert "after on Tesla T4" in notes
        assert "only before ran on an emulated device" in notes


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (0, 0, "same"),
        (0, 5, "new"),
        (5, 0, "gone"),
        (100, 104, "same"),
        (100, 110, "more"),
        (100, 90, "less"),
    ],
)
def test_verdict(before, after, state):
    assert judge_change(before, after) == state


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e9))
def test_verdicts_mirror_each_other(before, after, floor):
    mirror = {"gone": "new", "new": "gone", "less": "more", "more": "less", "same": "same"}
    assert judge_change(after, before, floor) == mirror[judge_change(before, after, floor)]


def test_wording():
    assert scale(1.5e9)(1.5e9) == "1,500"
    assert (scale(2e10).name, scale(3e3).name, scale(3e3)(1.23e3)) == ("s", "µs", "1.23")
    assert scale(5e6)(0) == "0"
    assert [percents(value) for value in (-28.4, 2.54, 9.96, 0)] == ["28 %", "2.5 %", "10 %", "0.0 %"]
    assert [percents(value) for value in (-99.6, -99.999, -100)] == ["99.6 %", "99.9 %", "100 %"]
    assert Measure(name="x", before=0, after=1).percent is None


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=12),
    st.lists(st.integers(0, 10**9), min_size=1, max_size=12),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 10**9)), max_size=6, unique_by=lambda p: p[0]),
)
def test_any_profiles_compare_and_the_mirror_says_the_opposite(left, right, kernels):
    def profile_of(lengths: list[int]) -> Profile:
        ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
        return change(
            slow(),
            steps=change(
                steps([1]), start=tuple(e - n for e, n in zip(ends, lengths, strict=True)), end=tuple(ends)
            ),
            kernels=tuple(KernelTime(name=n, calls=1, total=t) for n, t in kernels[: len(lengths)]),
        )

    comparison, back = (
        compared(profile_of(left), profile_of(right)),
        compared(profile_of(right), profile_of(left)),
    )
    assert comparison.length.change == -back.length.change
    assert comparison.within_spread == back.within_spread
    mirror = {"gone": "new", "new": "gone", "less": "more", "more": "less", "same": "same"}
    opposite = {row.name: mirror[row.state] for row in back.kernels}
    assert {row.name: row.state for row in comparison.kernels} == opposite
