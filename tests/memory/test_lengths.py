"""The law from lengths to memory, and remedies that follow from it."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.analyze.memory_report import with_longest
from gapless.analyze.verdicts.memory_verdict import fit_facts, misfit_sentence, shorten_items, too_long_batch
from gapless.commands import main
from gapless.memory.lengths import NoLengthLaw, fit_lengths, with_lengths
from gapless.memory.longest import longest_batch
from gapless.memory.parts import describe_fit
from gapless.memory.remedies import (
    bucket_edges,
    choose_remedy,
    length_changes,
    longest_first,
    pad_to_edges,
    try_remedies,
)
from gapless.memory.report import ReportOptions, report
from gapless.memory.simulate import simulate
from gapless.memory.trials import TrialConditions
from gapless.model import Report, Session, Verdict, session
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Fetch
from gapless.model.loading_feed import Padding
from gapless.model.memory import ALLOC, FREE, STEP, MemoryRun, Place, check
from gapless.model.memory_report import MemoryReport, Outcome, Remedy, Trial
from gapless.model.wording import binary_size


def training(lengths, *, layers=4, width=32 << 10, square=64, odd=(), noise=None) -> MemoryRun:
    """Steps with a batch, layers kept until the backward pass, and state made in the first step."""
    rows: list[tuple[int, int, int, int]] = []
    batches = []
    count = 0

    def alloc(size: int, place: int) -> int:
        nonlocal count
        rows.append((ALLOC, count, max(int(size), 1), place))
        count += 1
        return count - 1

    def free(ident: int) -> None:
        rows.append((FREE, ident, 0, -1))

    loss = -1
    for step, length in enumerate(lengths):
        batches.append((len(rows), (8, length)))
        batch = alloc(8 * 8 * length, 0)
        kept = []
        for layer in range(layers):
            kept.append(alloc(width * length, 1 + 2 * layer))
            kept.append(alloc((noise(step) if noise else square) * length * length + 512, 2 + 2 * layer))
        if loss >= 0:
            free(loss)
        loss = alloc(4, 100)
        for ident in reversed(kept):
            gradient = alloc(width * length, 50)
            free(ident)
            free(gradient)
        if step == 0:
            alloc(3 << 20, 60)
        if step in odd:
            free(alloc(1 << 20, 70))
        free(batch)
        rows.append((STEP, -1, 0, -1))
    action, ident, size, place = zip(*rows, strict=True)
    return MemoryRun(
        action=action,
        ident=ident,
        size=size,
        stream=(0,) * len(rows),
        place=place,
        places=tuple(Place() for _ in range(101)),
        batches=tuple(batches),
    )


def drawn(number=20, seed=1):
    draw = random.Random(seed)
    return [draw.randrange(32, 512) for _ in range(number)]


def test_the_law_makes_the_recorded_run_again():
    run = training(drawn())
    again = with_lengths(fit_lengths(run), drawn())
    assert check(again) == ""
    columns = (run.action, run.ident, run.size, run.stream, run.place)
    assert (again.action, again.ident, again.size, again.stream, again.place) == columns


@given(st.lists(st.integers(8, 700), min_size=12, max_size=12))
def test_the_law_foretells_other_lengths(lengths):
    foretold = with_lengths(fit_lengths(training(drawn(12))), lengths)
    assert check(foretold) == ""
    assert foretold.size == training(lengths).size


def test_steps_that_do_more_are_taken_to_be_like_the_others():
    law = fit_lengths(training(drawn(), odd=(9,)))
    assert law.odd == 1
    assert check(with_lengths(law, drawn())) == ""


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (training(drawn(5)), "5 steps are too few"),
        (training([64] * 12), "all batches have the same length"),
        (training([64, 128] * 6), "batches of 2 lengths are too few"),
        (training(drawn(), odd=range(2, 20, 2)), "of 18 steady steps request the same things"),
        (training(drawn(), noise=lambda step: 64 + 300 * (step % 2)), "do not follow"),
        (msgspec.structs.replace(training(drawn()), batches=()), "are not known"),
    ],
    ids=["short", "equal", "two", "unlike", "lawless", "unknown"],
)
def test_refused(run, why):
    with pytest.raises(NoLengthLaw, match=why):
        fit_lengths(run)


def test_two_sizes_that_vary_are_refused():
    run = training(drawn())
    both = tuple((row, (at % 3, length)) for at, (row, (_, length)) in enumerate(run.batches))
    with pytest.raises(NoLengthLaw, match="more than one dimension"):
        fit_lengths(msgspec.structs.replace(run, batches=both))


def test_what_is_tried():
    lengths = [100, 33, 300, 70]
    tried = {name: change(lengths) for name, change in length_changes(lengths).items()}
    assert tried["longest batch first"] == [300, 33, 100, 70]
    assert tried["pad to multiples of 64"] == [128, 64, 320, 128]
    assert tried["pad to powers of two"] == [128, 64, 512, 128]
    assert tried["pad to the longest"] == [300] * 4
    assert tuple(lengths) not in map(tuple, tried.values())
    assert not any("4 lengths" in name for name in tried)  # these are the four


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 9))
def test_padding_only_lengthens(lengths, number):
    to = bucket_edges(lengths, number)
    assert len(to) <= number
    assert max(to) == max(lengths)
    assert all(new >= old for new, old in zip(pad_to_edges(to, lengths), lengths, strict=True))
    assert sorted(longest_first(lengths)) == sorted(lengths)


def test_remedies_are_the_simulated_runs():
    run = training(drawn(30))
    baseline = simulate(run)
    tried, note = try_remedies(run, TrialConditions(), baseline)
    assert note == ""
    for trial in tried:
        if trial.settings or not trial.name.startswith("pad to multiples of 64"):
            continue
        new = [-(-length // 64) * 64 for length in drawn(30)]
        assert trial.outcome == simulate(training(new))
        assert trial.tokens == pytest.approx(sum(new) / sum(drawn(30)) - 1)
        break
    else:
        pytest.fail("padding to multiples of 64 was not tried")


def test_a_report_ranks_them_beside_settings():
    memory_report = report(training(drawn(30)), ReportOptions(search=True))
    assert memory_report.remedies
    peaks = [
        round(remedy.outcome.peak_reserved / memory_report.baseline.peak_reserved, 2)
        for remedy in memory_report.remedies
    ]
    assert peaks == pytest.approx(sorted(peaks), abs=0.011)
    assert memory_report.remedy >= 0 or memory_report.best >= 0


def test_without_a_law_the_report_says_why():
    result = report(training([64] * 12), ReportOptions(search=True))
    assert result.remedies == ()
    assert "padding and order of batches were not tried: all batches have the same length" in result.notes


def outcome(peak: int, retries: int = 0) -> Outcome:
    return Outcome(peak_reserved=peak, retries=retries)


class TestWinner:
    base = outcome(1000)

    def test_what_costs_nothing_wins(self):
        tried = (Remedy(name="first", outcome=outcome(900)),)
        assert choose_remedy(tried, None, self.base) == 0

    def test_padding_must_save_more_than_settings(self):
        settings = Trial(settings="x:1", outcome=outcome(500))
        assert (
            choose_remedy((Remedy(name="pad", tokens=0.3, outcome=outcome(490)),), settings, self.base) == -1
        )
        assert (
            choose_remedy((Remedy(name="pad", tokens=0.3, outcome=outcome(400)),), settings, self.base) == 0
        )

    def test_padding_that_saves_little_is_not_advised(self):
        assert choose_remedy((Remedy(name="pad", tokens=0.3, outcome=outcome(970)),), None, self.base) == -1

    def test_fewer_retries_win(self):
        settings = Trial(settings="x:1", outcome=outcome(900, retries=5))
        tried = (Remedy(name="pad", tokens=0.3, outcome=outcome(950, retries=0)),)
        assert choose_remedy(tried, settings, outcome(1000, retries=9)) == 0


# The longest batch that is known of -----------------------------------------------------------------


def longest_of(run: MemoryRun, length: int, capacity: int = -1):
    return longest_batch(run, length, TrialConditions(capacity, capacity))


@pytest.mark.parametrize("length", [1024, 4096])
def test_what_the_longest_batch_needs_is_what_a_run_with_it_needs(length):
    lengths = drawn()
    longest = longest_of(training(lengths), length)
    real = simulate(training([*lengths[:-1], length]))
    assert (longest.length, longest.seen, longest.batches, longest.fits) == (
        length,
        max(lengths),
        len(lengths),
        True,
    )
    assert longest.needs == pytest.approx(real.peak_reserved, rel=0.01)


def test_the_longest_batch_decides_whether_it_fits():
    run = training(drawn())
    whole = longest_of(run, 4096)
    short = longest_of(run, 4096, whole.needs // 2)
    assert not short.fits
    assert whole.needs * 0.9 <= short.needs <= whole.needs  # a full device makes it give back its cache
    assert short.has == whole.needs // 2
    assert max(drawn()) < short.most < 4096
    assert short.cut <= short.has
    assert longest_of(run, short.most + 128, short.has).fits is False


def test_a_length_that_the_run_had_is_no_news():
    assert longest_of(training(drawn()), max(drawn())) is None
    assert longest_of(training([64] * 12), 64) is None


def test_a_length_whose_memory_cannot_be_calculated_says_why():
    length = longest_of(training(drawn(), odd=range(2, 20, 2)), 4096)
    assert length.needs == 0
    assert "steady steps request the same things" in length.why_not
    assert "was not tried" in describe_fit(MemoryReport(sentence="", limit=1 << 40, longest=length))


def reported(run: MemoryRun, *lengths: int) -> Report:
    padding = Padding(field="tokens", share=0.5, size=100.0, lengths=lengths, batch=8)
    use = LoaderUse(per_step=1.0, fetch=Fetch(padding=padding))
    (report_with_longest,) = with_longest([report(run)], [run], [use])
    return Report(verdict=Verdict(sentence=""), memory=(report_with_longest,))


def test_the_verdict_is_for_the_longest_item_of_the_loader():
    run = training(drawn())
    needs = longest_of(run, 4096).needs
    limit = needs - (200 << 20)
    whole = msgspec.structs.replace(run, limit=limit, total_memory=limit, gpu="NVIDIA A10")
    report = reported(whole, 100, 4096)
    (fact,) = fit_facts(report)
    assert "an item of 4,096 needs" in fact
    assert f"{binary_size(too_long_batch(report.memory).needs - limit)} more than there is" in fact
    assert not describe_fit(report.memory[0]).startswith("fits")
    sentence = misfit_sentence(too_long_batch(report.memory), "NVIDIA A10")
    assert sentence.startswith("Does not fit with the longest item: 4,096 long")
    change = shorten_items(too_long_batch(report.memory))
    assert change.before > limit >= change.after
    fitting = reported(msgspec.structs.replace(whole, limit=2 * needs, total_memory=2 * needs), 100, 4096)
    assert fit_facts(fitting)[0].count("fits with the 20 batches of this run") == 1
    assert too_long_batch(fitting.memory) is None
    assert reported(whole, 100).memory[0].longest is None


def test_memory_of_a_saved_check_names_the_longest_item(tmp_path, capsys):
    run = training(drawn())
    limit = longest_of(run, 4096).needs - (200 << 20)
    run = msgspec.structs.replace(run, limit=limit, total_memory=limit, gpu="NVIDIA A10", origin="emulated")
    use = LoaderUse(
        per_step=1.0, fetch=Fetch(padding=Padding(field="tokens", share=0.5, lengths=(100, 4096), batch=8))
    )
    path = tmp_path / "run.gapless.json"
    session.save(Session(script=("train.py",), memory=(run,), loaders=(use,)), str(path))
    assert main(["memory", "-q", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("Does not fit with the longest item: 4,096 long, it needs")
    assert "1 cut items to" in text
