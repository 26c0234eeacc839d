"""No document says two things of one number: sentences, tables, findings and data agree."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from consistency import WIDE, contradictions, numbers_in
from render.documents import KINDS, document
from simulated_ranks import MS, simulated

import gapless
from gapless.analyze import report
from gapless.analyze.session_report import with_loaders
from gapless.model import Finding, Frequency, Report, SourceLine, StepSummary, Verdict
from gapless.model.estimate import Count, Estimate, Range, StepThroughput
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Demand, Diagnosis, Fetch, Machine, Prediction, Setting
from gapless.render import renderer

HERE = Path(__file__).parent
SCRIPTS = HERE.parent / "field" / "scripts"
LATE = """\
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, i):
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        return torch.rand(3, 16, 16), i % 10

net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 10)).cuda()
optimizer = torch.optim.Adam(net.parameters())
for x, y in DataLoader(Slow(), batch_size=16):
    loss = torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


MADE_UP = {"session"}
"""Documents whose numbers are made up one by one, to be of any size."""


@pytest.mark.parametrize("kind", sorted({*KINDS} - MADE_UP))
def test_every_kind_of_document_says_one_thing(kind):
    assert contradictions(document(kind)) == []


def measured() -> Diagnosis:
    """A loader whose batches take 60 ms, of which four workers hide all."""
    setting = Setting(workers=4, prefetch=2, persistent=True)
    return Diagnosis(
        demand=Demand(step=40e6),
        machine=Machine(allowed=8),
        fetch=Fetch(batches=((25_000_000, 35_000_000),)),
        now=Prediction(setting=Setting(), step=100e6, wait=60e6),
        advised=Prediction(setting=setting, step=40e6),
        recommended=setting.arguments,
    )


def ranks() -> Report:
    """Four ranks of which the third is 3 ms later than the others at each of four collectives."""
    return report(simulated(slow={2: lambda step, number: 3 * MS}, noise=0))


def checked(python, tmp_path: Path, script: Path, *options: str) -> Report:
    saved = tmp_path / "run.gapless.json"
    process = python("-m", "gapless", "check", "-q", *options, "-o", str(saved), str(script))
    assert process.returncode == 0, process.stderr
    return gapless.report(gapless.load(saved))


@pytest.mark.parametrize("name", ["mnist_like", "vae", "manual_update", "siamese"])
def test_reports_on_many_kinds_of_scripts_are_consistent(name, python, tmp_path):
    options = ("--no-loader", "--gpu", "a100,l4", "--price", "a100=1.8,l4=0.8")
    assert contradictions(checked(python, tmp_path, SCRIPTS / f"{name}.py", *options)) == []


def test_speed_and_cost_are_of_the_step_with_its_wait(python, tmp_path, write):
    options = ("--values", "--loader-budget", "3", "--gpu", "a100,l4", "--price", "a100=1.8,l4=0.8")
    report = checked(python, tmp_path, write("late.py", LATE), *options)
    assert contradictions(report) == []
    estimate = report.estimate
    assert estimate is not None
    if not estimate.waiting.likely:
        pytest.skip("the machine is too busy to measure the loader")
    assert estimate.waiting.likely > 10_000_000
    assert report.verdict.sentence.startswith("It fits both GPUs; cheapest: L4 at")
    for offer in report.offers:
        assert offer.each == 16
        assert offer.cost == pytest.approx(1e6 / 16 * offer.whole.likely / 3600e9 * offer.price)


class TestItFindsWhatIsWrong:
    """A checker that finds nothing in a report that was falsified would be worth nothing."""

    def report(self) -> Report:
        step = Range(30_000_000, 40_000_000, 50_000_000)
        late = LoaderUse(setting=Setting(), per_step=1.0, step=step, late=Range(*[60_000_000] * 3))
        late = msgspec.structs.replace(late, left=Range(), diagnosis=measured())
        wait = Finding(
            code="GAP101",
            name="item-read",
            frequency=Frequency(when="every-step", waits=2.0, per_step=2.0, every=1),
            line=SourceLine("train.py", 7, "main", "loss.item()"),
            remedy="read it later",
        )
        estimate = Estimate(gpu="NVIDIA A100", step=step, throughput=StepThroughput(samples=Count(number=8)))
        steps = StepSummary(seen=12, steady=10, waits_per_step=2.0, least=2, most=2)
        return with_loaders(
            Report(verdict=Verdict(sentence=""), steps=steps, estimate=estimate, findings=(wait,)), [late]
        )

    def test_a_correct_report_has_no_contradictions(self):
        report = self.report()
        assert contradictions(report) == []
        assert {number.name for number in numbers_in(renderer("text")(report, WIDE))} > {
            "step",
            "samples per second",
        }

    def test_a_step_of_another_length(self):
        report = self.report()
        assert report.estimate is not None
        step = Range(1_000_000, 2_000_000, 3_000_000)
        other = msgspec.structs.replace(report.estimate, step=step)
        problems = contradictions(msgspec.structs.replace(report, estimate=other))
        assert any(problem.startswith("step: ") for problem in problems)

    def test_a_sentence_that_denies_the_findings(self):
        report = self.report()
        sentence = "Nothing worth fixing: no syncs in 10 training steps"
        other = msgspec.structs.replace(report.verdict, sentence=sentence)
        assert contradictions(msgspec.structs.replace(report, verdict=other))

    def test_changes_that_do_not_follow_each_other(self):
        report = self.report()
        first = report.verdict.do_first[0]
        again = msgspec.structs.replace(first, before=first.after + 5e6, after=first.after)
        other = msgspec.structs.replace(report.verdict, do_first=(first, again))
        assert any(
            "begins with" in contradiction
            for contradiction in contradictions(msgspec.structs.replace(report, verdict=other))
        )

    def test_syncs_that_are_not_those_of_the_findings(self):
        report = self.report()
        other = msgspec.structs.replace(report.steps, waits_per_step=report.steps.waits_per_step + 1)
        assert any(
            "syncs per step" in contradiction
            for contradiction in contradictions(msgspec.structs.replace(report, steps=other))
        )

    def test_idleness_that_the_gpus_work_leaves_no_room_for(self):
        report = self.report()
        assert report.estimate is not None
        busy = msgspec.structs.replace(report.estimate, device=report.estimate.whole.likely * 9 // 10)
        assert any(
            "but the GPU works for 90 %" in contradiction
            for contradiction in contradictions(msgspec.structs.replace(report, estimate=busy))
        )

    def test_a_limit_that_is_none(self):
        report = self.report()
        assert report.estimate is not None
        idle = msgspec.structs.replace(
            report.estimate, device=1, limiter="device", sure=1.0, limiters={"device": 1.0}
        )
        problems = contradictions(msgspec.structs.replace(report, estimate=idle))
        assert any(problem.startswith("limited by the GPU, which works for 0 %") for problem in problems)

    def test_another_idleness_in_a_sentence_than_in_the_table(self):
        report = ranks()
        assert contradictions(report) == []
        sentence = "The GPU of rank 2 (of 4 in these files) idles 90 % of each 56 ms step"
        verdict = msgspec.structs.replace(report.verdict, sentence=sentence)
        problems = contradictions(msgspec.structs.replace(report, verdict=verdict))
        assert any("but 90.0 %" in problem for problem in problems)

    def test_a_late_rank_that_is_not_late_in_the_table(self):
        report = ranks()
        in_time = tuple(msgspec.structs.replace(rank, late=0.0) for rank in report.ranks)
        problems = contradictions(msgspec.structs.replace(report, ranks=in_time))
        assert any("but in the table it is 0 µs late" in problem for problem in problems)

    def test_a_late_rank_beside_the_verdict_on_another(self):
        report = ranks()
        verdict = msgspec.structs.replace(
            report.verdict, sentence=report.verdict.sentence.replace("rank 2", "rank 1")
        )
        problems = contradictions(msgspec.structs.replace(report, verdict=verdict))
        assert any("the profile is another rank's" in problem for problem in problems)

    @pytest.mark.parametrize(
        ("line", "name", "value"),
        [
            ("(A100, estimated: step 2.1 ms (1–3 ms))", "step", "2.1 ms"),
            ("saves 13 µs per batch (batch ≈ 232 µs)", "step", "232 µs"),
            ("Speed: 468 (460–470) samples/s, MFU 3.1 % (2–4) of 156 TFLOP/s", "samples per second", "468"),
            ("Almost certainly limited by the CPU, which launches", "limited by", "the CPU"),
            ("Memory: peak 42 MiB reserved (30 allocated)", "peak of reserved memory", "42 MiB"),
        ],
    )
    def test_numbers_are_read_with_their_names(self, line, name, value):
        assert (name, value) in {(number.name, number.value) for number in numbers_in(line)}
