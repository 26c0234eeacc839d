"""From loaders that were measured to findings, of a run and of a profile."""

from __future__ import annotations

import msgspec
import pytest
from consistency import contradictions

from gapless.analyze.loaders import findings, own_step, with_input_limit, with_measurement
from gapless.analyze.session_report import with_loaders
from gapless.analyze.verdicts.session_verdict import verdict
from gapless.model import Change, Environment, Finding, Frequency, Report, SourceLine, StepSummary, Verdict
from gapless.model.estimate import BATCHES_IN_TIME, Count, Estimate, Range, StepThroughput
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Demand, Diagnosis, Fetch, HotLine, Machine, Prediction, Setting, Transfer
from gapless.model.loading_feed import Begin, Padding
from gapless.model.loading_mistakes import Mistake
from gapless.model.offer import Offer
from gapless.model.planned import Planned
from gapless.model.profile import PhaseTime, Price, Profile, Steps
from gapless.render import Style, renderer

MS = 1_000_000
MADE = SourceLine("train.py", 12, "main", "loader = DataLoader(...)")
READ = SourceLine("/home/me/data.py", 33, "__getitem__", "image = Image.open(path)")


def ranged(least: float, likely: float, most: float) -> Range:
    return Range(int(least * MS), int(likely * MS), int(most * MS))


def diagnosis(now: float = 60, then: float = 0, step: float = 40, advised: int = 3) -> Diagnosis:
    """Waits of so many milliseconds without workers, and with those that are advised."""
    setting = Setting(workers=advised, prefetch=2, persistent=True)
    return Diagnosis(
        setting=Setting(pin=True),
        demand=Demand(step=step * MS),
        machine=Machine(allowed=8),
        fetch=Fetch(batches=((25 * MS, 35 * MS),)),
        hot=(HotLine(line=READ, share=0.62),),
        now=Prediction(setting=Setting(), step=(step + now) * MS, wait=now * MS),
        advised=Prediction(setting=setting, step=(step + then) * MS, wait=then * MS),
        recommended=setting.arguments,
    )


def use(late=(60, 60, 60), left=(0, 0, 0), step=(30, 40, 50), **other) -> LoaderUse:
    other = {"diagnosis": diagnosis(late[1], left[1], step[1]), "made": MADE, **other}
    return LoaderUse(late=ranged(*late), left=ranged(*left), step=ranged(*step), per_step=1.0, **other)


def only(*uses: LoaderUse) -> Finding:
    (finding,) = findings(uses)
    return finding


def starting(left=(0, 0, 0), **other) -> tuple[Finding, ...]:
    """What is found of a loader with one worker that starts in each epoch of 100 steps, in 1.5 s."""
    setting = Setting(workers=1, prefetch=2, pin=True)
    diagnosed = msgspec.structs.replace(
        diagnosis(20, left[1]),
        length=100,
        setting=setting,
        transfer=Transfer(batches=9, start=10 * MS, boot=1490 * MS),
        now=Prediction(setting=setting, step=60.0 * MS, wait=20.0 * MS),
        begin=other.pop("begin", Begin()),
    )
    return tuple(
        findings(
            [use(late=(20, 20, 20), left=left, setting=setting, length=100, diagnosis=diagnosed, **other)]
        )
    )


def first_changes(*results: Finding) -> tuple[Change, ...]:
    """What is to be done first about findings of a loader."""
    steps = StepSummary(seen=12, steady=10)
    return verdict(Report(verdict=Verdict(sentence=""), findings=results, steps=steps)).do_first


class TestLimiter:
    """A step of 40 ms (30–50) that the GPU limits in nine machines of ten."""

    MADE = Estimate(
        step=ranged(30, 40, 50), limiter="device", sure=0.9, limiters={"device": 0.9, "host": 0.1}
    )

    @pytest.mark.parametrize(
        ("late", "workers", "limiter", "sure"),
        [
            # In its turn with the rest of the step: it limits where it takes more.
            ((60, 60, 60), 0, "input", 1.0),
            ((5, 5, 5), 0, "device", 0.9),
            ((40, 40, 40), 0, "input", 0.5),
            # Made beside the step: nothing else is the limit, unless it may be in time.
            ((50, 60, 70), 1, "input", 1.0),
            ((3, 4, 14), 1, "input", 1.0),
            ((0, 0, 10), 1, "device", 0.9),
        ],
    )
    def test_the_input_limits_where_it_takes_longest(self, late, workers, limiter, sure):
        setting = Setting(workers=workers, prefetch=2 * workers)
        diagnosed = msgspec.structs.replace(diagnosis(late[1]), setting=setting)
        limited = with_input_limit(self.MADE, [use(late=late, setting=setting, diagnosis=diagnosed)])
        assert limited.limiter == limiter
        assert limited.sure == pytest.approx(sure, abs=0.06)
        assert sum(limited.limiters.values()) == pytest.approx(1)
        assert next(iter(limited.limiters.items())) == (limited.limiter, limited.sure)

    def test_a_loader_in_time_or_not_measured_changes_nothing(self):
        assert with_input_limit(self.MADE, [use(late=(0, 0, 0)), use(diagnosis=None)]) == self.MADE
        assert with_input_limit(self.MADE, []) == self.MADE


class TestOneStep:
    """Everything that is said of a step speaks of the one that the run will have: 40 ms and 60 of waiting."""

    MADE = Estimate(
        gpu="NVIDIA A100",
        step=ranged(30, 40, 50),
        saved=ranged(1, 2, 3),
        limiter="device",
        sure=1.0,
        limiters={"device": 1.0},
        assumptions=(BATCHES_IN_TIME, "Python is as usual"),
        throughput=StepThroughput(samples=Count(number=8)),
    )

    def report(self, workers: int = 0, ranks: int = 1) -> Report:
        summary = StepSummary(seen=12, steady=10)
        own = Offer(gpu="NVIDIA A100", step=self.MADE.step, price=1.8, unit="samples", emulated=True)
        offers = (msgspec.structs.replace(own, throughput=self.MADE.throughput),)
        document = Report(
            verdict=Verdict(sentence=""),
            environment=Environment(world_size=ranks, emulated=True),
            offers=offers if ranks > 1 else (),
            steps=summary,
            estimate=self.MADE,
            planned=Planned(steps=3000, passes=3),
        )
        setting = Setting(workers=workers, prefetch=2 * workers)
        diagnosed = msgspec.structs.replace(diagnosis(), setting=setting)
        return with_loaders(document, [use(setting=setting, diagnosis=diagnosed)])

    def test_the_estimate_has_the_wait_beside_the_step(self):
        estimate = self.report().estimate
        assert estimate is not None
        assert (estimate.step, estimate.waiting) == (self.MADE.step, ranged(60, 60, 60))
        assert estimate.whole == ranged(90, 100, 110)
        assert not estimate.overlapped
        assert BATCHES_IN_TIME not in estimate.assumptions

    def test_speed_run_and_first_change_are_of_that_step(self):
        document = self.report()
        assert document.verdict.facts == (
            "Speed: 80 (72.7–88.9) samples/s",
            "The whole run: 3,000 steps in 3 passes, 5 min (4.5–5.5 min)",
        )
        assert "step 100 ms (90–110 ms); 40 ms (30–50 ms) if every batch were on time" in (
            document.verdict.confidence
        )
        assert document.verdict.do_first[0].before == 100 * MS
        assert document.verdict.sentence.startswith("Your GPU would idle for 60 % of each step")
        (price,) = [finding.price for finding in document.findings if finding.code == "GAP301"]
        assert price is not None
        assert price.of == 100 * MS

    def test_of_one_of_several_ranks_all_of_it_is_of_the_step_with_its_wait(self):
        """The others are as late: a collective ends when the last of them has come."""
        document = self.report(ranks=8)
        assert document.verdict.facts[0] == "Speed of this rank: 80 (72.7–88.9) samples/s"
        assert document.verdict.do_first[0].before == 100 * MS
        (offer,) = document.offers
        assert offer.whole == ranged(90, 100, 110)
        assert offer.cost == pytest.approx(1e6 / 8 * 0.1 / 3600 * 1.8)
        assert contradictions(document) == []

    def test_batches_that_workers_make_are_mended_first(self):
        """A shorter step would only wait longer."""
        document = self.report(workers=1)
        assert document.estimate is not None
        assert document.estimate.overlapped
        assert document.verdict.do_first[0].codes == ("GAP301",)

    @pytest.mark.parametrize("width", [60, 80])
    def test_the_table_of_the_estimate_says_the_same(self, width):
        style = Style(width=width, unfold=True)
        text = " ".join(renderer("text")(self.report(), style).split())
        assert "step, at the sizes of this run 100 ms (90–110 ms)" in text
        assert "waiting for data in it 60 ms" in text


class TestPadding:
    """A step of 40 ms in which the GPU works for 30, with batches of which half is padding that would go."""

    PADDING = Padding(field="ids", share=0.5, size=100, lengths=(40, 50, 60) * 40, batch=8, sorted=0.0)

    def report(self, host: int, *uses: LoaderUse, **more: object) -> Report:
        estimate = Estimate(gpu="NVIDIA A100", step=ranged(30, 40, 50), device=30 * MS, host=host)
        padded = LoaderUse(
            fetch=Fetch(padding=self.PADDING), per_step=1.0, step=estimate.step, device=estimate.device
        )
        summary = StepSummary(seen=12, steady=10)
        document = Report(verdict=Verdict(sentence=""), steps=summary, estimate=estimate, **more)
        return with_loaders(document, [padded, *uses])

    def test_it_is_in_the_first_sentence_and_among_what_to_do(self):
        document = self.report(10 * MS)
        assert document.verdict.sentence == "Up to 38 % of each step goes to padding"
        assert document.verdict.level == "act"
        assert document.verdict.why[0].startswith("50 % of `ids` is padding: items are 50 long on average")
        (change,) = document.verdict.do_first
        assert change.codes == ("GAP304",)
        assert (change.before, change.after, change.bound) == (40 * MS, 25 * MS, True)
        text = " ".join(renderer("text")(document, Style(width=80)).split())
        assert "40 → 25 ms" in text
        assert "saves up to 15 ms per step, of 40 ms" in text

    def test_no_step_is_shorter_than_the_cpu_needs_to_launch_it(self):
        (change,) = self.report(30 * MS).verdict.do_first
        assert change.after == 30 * MS
        document = self.report(40 * MS)
        assert "GAP304" in {finding.code for finding in document.findings}
        assert not document.verdict.do_first
        assert document.verdict.sentence.startswith("Nothing worth fixing")

    def test_a_late_loader_is_reported_first_without_waiting_for_padding(self):
        document = self.report(10 * MS, use())
        assert document.verdict.sentence == (
            "Your GPU would idle for 60 % of each step, waiting for data; up to 15 % of each step goes to "
            "padding"
        )
        assert [change.codes for change in document.verdict.do_first] == [("GAP301",), ("GAP304",)]
        assert [change.before for change in document.verdict.do_first] == [100 * MS, 40 * MS]


class TestRun:
    def test_a_late_loader_with_the_numbers_of_the_user(self):
        finding = only(use())
        assert (finding.code, finding.line, finding.frequency) == (
            "GAP301",
            MADE,
            Frequency(when="every-step", waits=0),
        )
        assert finding.evidence == (
            "a batch takes 60 ms to make, 25 ms CPU time and 35 ms waiting; 62 % of its time at "
            "`image = Image.open(path)` (data.py:33)",
            "a step of 40 ms (estimated, without its input) waits 60 ms for its batch with num_workers=0: "
            "60 %",
            "measured on this machine (8 cores), predicted for the GPU's step",
        )
        # What is pinned stays so, though nothing was measured of it.
        assert finding.remedy == (
            "`DataLoader(..., num_workers=3, persistent_workers=True, pin_memory=True)`: a step then takes "
            "40 ms instead of 100 ms"
        )

    def test_the_price_is_the_whole_wait_over_what_the_estimate_allows(self):
        price = only(use(late=(50, 60, 70))).price
        assert price is not None
        assert (price.least_last, price.last, price.most_last) == (50 * MS, 60 * MS, 70 * MS)
        assert (price.of, price.estimated) == (100 * MS, True)

    @pytest.mark.parametrize(
        ("late", "said"), [((2.7, 60, 70), 1), ((2.6, 60, 70), 0), ((0, 60, 70), 0), ((0, 0, 0), 0)]
    )
    def test_a_doubtful_wait_is_not_reported(self, late, said):
        assert len(list(findings([use(late=late, step=(30, 40, 50))]))) == said

    @pytest.mark.parametrize(("workers", "said"), [(1, 1), (2, 0), (3, 0)])
    def test_workers_that_keep_up_are_not_what_is_waited_for(self, workers, said):
        """Batches of 60 ms in steps of 40 ms that are 4 ms longer for what taking a batch over takes."""
        setting = Setting(workers=workers, prefetch=2)
        diagnosed = msgspec.structs.replace(diagnosis(), setting=setting)
        diagnosed = msgspec.structs.replace(
            diagnosed, now=Prediction(setting=setting, step=44.0 * MS, wait=4.0 * MS)
        )
        assert len(list(findings([use(late=(4, 4, 4), diagnosis=diagnosed)]))) == said

    def test_nothing_was_measured(self):
        assert list(findings([use(diagnosis=None)])) == []

    def test_where_no_setting_is_enough(self):
        assert only(use(left=(20, 20, 20))).remedy.endswith(
            "a step then takes 60 ms instead of 100 ms; for the rest, make batches cheaper"
        )
        nothing = "no setting keeps up on this machine: make batches cheaper"
        assert only(use(left=(59, 59, 59))).remedy == nothing
        own = msgspec.structs.replace(diagnosis(), setting=Setting(workers=3, prefetch=2))
        assert only(use(setting=own.setting, diagnosis=own)).remedy == nothing

    def test_in_the_words_of_a_trainer(self):
        assert only(use(library="transformers")).remedy.startswith(
            "`TrainingArguments(dataloader_num_workers=3, dataloader_persistent_workers=True, "
            "dataloader_pin_memory=True)`"
        )

    def test_a_loader_that_is_begun_anew_for_each_batch(self):
        loader = use(diagnosis=None, passes=12, batches=12, length=100, first=45.0 * MS, late=(0, 0, 0))
        finding = only(msgspec.structs.replace(loader, setting=Setting(workers=2)))
        assert (finding.code, finding.line) == ("GAP303", MADE)
        assert finding.evidence == (
            "12 passes were started for 12 batches of 100; each starts 2 workers",
            "the first batch of a pass takes 45 ms, as observed in this run",
        )
        assert finding.price is not None
        assert (finding.price.last, finding.price.of) == (45 * MS, 85 * MS)

    @pytest.mark.parametrize(
        "other",
        [{"passes": 4}, {"batches": 60}, {"length": 1}, {"per_step": 0.0}, {"length": -1, "ended": 12}],
        ids=["few", "epochs", "one batch", "no steps", "streams of one batch"],
    )
    def test_passes_that_are_no_restarts(self, other):
        loader = use(diagnosis=None, passes=12, batches=12, length=100, first=45.0 * MS)
        assert list(findings([msgspec.structs.replace(loader, **other)])) == []

    def test_mistakes_each_once(self):
        mistake = Mistake(code="GAP316", name="set-epoch-not-called", seen="two alike", remedy="call it")
        finding = only(use(diagnosis=None, mistakes=(mistake,)), use(diagnosis=None, mistakes=(mistake,)))
        assert (finding.code, finding.line, finding.evidence) == ("GAP316", MADE, ("two alike",))

    def test_what_costs_more_than_any_wait_comes_first(self):
        def wait(ms: int, when="every-step") -> Finding:
            often = Frequency(when=when, waits=1)
            price = Price(last=ms * MS, estimated=True)
            return Finding(code="GAP101", name="", line=None, frequency=often, remedy="", price=price)

        for dearest, place in ((59, 0), (61, 1)):
            report = Report(verdict=Verdict(sentence=""), findings=(wait(dearest), wait(1, "set-up")))
            codes = [finding.code for finding in with_loaders(report, [use()]).findings]
            assert codes.index("GAP301") == place
            assert codes[2] == "GAP101"

    @pytest.mark.parametrize(
        ("library", "edit"),
        [
            ("", "`num_workers=3, persistent_workers=True, pin_memory=True`"),
            ("transformers", "`dataloader_num_workers=3, dataloader_persistent_workers=True`"),
        ],
    )
    def test_kept_workers_are_one_change_with_their_number(self, library, edit):
        """Steps of 40 ms that wait 20 ms; epochs of 100 steps, whose worker takes 1.5 s to start."""
        late, begins = starting(library=library)
        assert (late.code, begins.code) == ("GAP301", "GAP305")
        assert late.change == begins.change == edit
        assert (late.price.of, begins.price.of) == (75 * MS, 75 * MS)
        (change,) = first_changes(late, begins)
        assert (change.what, change.codes) == (edit, ("GAP301", "GAP305"))
        assert (change.before, change.after) == (75 * MS, 40 * MS)

    def test_the_list_begins_with_the_step_of_the_headline(self):
        """A stream that begins anew: no setting helps against that."""
        results = first_changes(*starting(begin=Begin(again=2000 * MS)))
        assert [change.codes for change in results] == [("GAP305",), ("GAP301",)]
        assert [(change.before, change.after) for change in results] == [
            (80.1 * MS, 60 * MS),
            (60 * MS, 40 * MS),
        ]

    def test_kept_workers_alone_where_no_other_number_helps(self):
        (begins,) = (finding for finding in starting(left=(20, 20, 20)) if finding.code == "GAP305")
        assert begins.change == "`persistent_workers=True`"

    def test_notes_name_the_loader(self):
        loader = use(diagnosis=None, notes=("it could not be measured",))
        report = with_loaders(Report(verdict=Verdict(sentence="")), [loader])
        assert report.notes == ("the loader of train.py:12: it could not be measured",)


class TestProfile:
    def profile(self, loading: float, step: float = 100) -> Profile:
        start = tuple(int(step * MS) * number for number in range(10))
        end = tuple(moment + int(step * MS) for moment in start)
        return Profile(
            steps=Steps(source="ProfilerStep", start=start, end=end),
            phases=(PhaseTime(name="loading", host=int(10 * loading * MS)),),
        )

    def report(self, loading: float, *codes: str) -> Report:
        often = Frequency(when="every-step", waits=0)
        findings = [Finding(code=c, name="", line=MADE, frequency=often, remedy="as before") for c in codes]
        return Report(verdict=Verdict(sentence=""), findings=tuple(findings), profile=self.profile(loading))

    def test_the_step_without_its_input(self):
        assert own_step(self.profile(60)) == 40 * MS
        assert own_step(Profile()) == 0.0

    def test_the_wait_gets_the_measurement_and_the_others_do_not(self):
        joined = with_measurement(self.report(60, "GAP301", "GAP501"), diagnosis())
        first, second = joined.findings
        assert first.evidence == (
            "a batch takes 60 ms to make, 25 ms CPU time and 35 ms waiting; 62 % of its time at "
            "`image = Image.open(path)` (data.py:33)",
            "predicted for this profile's step of 40 ms without its input: 60 ms of waiting with "
            "num_workers=0, measured on a machine with 8 cores",
        )
        assert first.remedy == (
            "`DataLoader(..., num_workers=3, persistent_workers=True, pin_memory=True)`: predicted step 40 "
            "ms instead of 100 ms"
        )
        assert second.remedy == "as before"
        assert joined.notes == ()

    def test_where_no_setting_is_enough(self):
        more = with_measurement(self.report(60, "GAP301"), diagnosis(then=20)).findings[0].remedy
        assert more.endswith("instead of 100 ms; for the rest, make batches cheaper")
        none = with_measurement(self.report(60, "GAP301"), diagnosis(then=58)).findings[0].remedy
        assert none == "no setting keeps up on the machine where it was measured: make batches cheaper"

    @pytest.mark.parametrize(
        ("loading", "now", "starved", "said"),
        [
            (60, 20, True, "waits 20 ms for its batch, but in this profile 60 ms: was it the same loader"),
            (60, 35, True, ""),
            (1, 60, False, "would wait 60 ms for its batch, but in this profile it does not"),
            (1, 1, False, ""),
        ],
    )
    def test_a_measurement_that_does_not_fit_the_profile(self, loading, now, starved, said):
        joined = with_measurement(self.report(loading, *["GAP301"] * starved), diagnosis(now=now))
        assert [said in note for note in joined.notes] == [True] * bool(said)
