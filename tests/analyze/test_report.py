"""Sessions in, reports out: how often each line waits, and when."""

from __future__ import annotations

import pytest
from sessions import Simulation, library_line, line

from gapless.analyze import report
from gapless.model import Ending, Session

SOURCE = "\n" * 9 + "for batch in loader:\n" + "    work()\n" * 90 + "\n"
"""A loop from line 10 to 100; everything else is outside of it."""


def read(file: str) -> str:
    return SOURCE


def unreadable(file: str) -> str:
    raise OSError


def findings(run: Simulation, source=read):
    """(line, when, waits, every) of each finding, in order."""
    return [
        (finding.line.line, finding.frequency.when, finding.frequency.waits, finding.frequency.every)
        for finding in report(run.session(), source).findings
    ]


def train(
    steps: int, before=lambda run: None, body=lambda run, step: None, after=lambda run: None
) -> Simulation:
    run = Simulation()
    before(run)
    for step in range(steps):
        run.mark("backward", 90)
        run.step(95)
        body(run, step)
    after(run)
    return run


@pytest.mark.parametrize("source", [read, unreadable])
def test_every_step(source):
    run = train(12, body=lambda run, step: run.wait(97, times=2))
    assert findings(run, source) == [(97, "every-step", 2, 1)]


@pytest.mark.parametrize("source", [read, unreadable])
@pytest.mark.parametrize("first", [0, 3, 4])
def test_every_five_steps(first, source):
    run = train(22, body=lambda run, step: step % 5 == first and run.wait(97))
    assert findings(run, source) == [(97, "some-steps", 1, 5)]


def test_some_steps():
    run = train(12, body=lambda run, step: step in (3, 5, 6) and run.wait(97))
    (finding,) = report(run.session(), read).findings
    assert (finding.frequency.when, finding.frequency.every, finding.frequency.waits) == ("some-steps", 0, 1)
    assert finding.frequency.per_step == pytest.approx(0.3)


def test_once_in_a_steady_step_is_no_rhythm():
    run = train(12, body=lambda run, step: step == 6 and run.wait(97))
    assert findings(run) == [(97, "some-steps", 1, 0)]


def test_set_up_is_separated_from_the_first_step():
    run = Simulation()
    run.wait(5, times=4)
    run.wait(50)
    for _ in range(12):
        run.mark("backward", 90)
        run.step(95)
    assert findings(run) == [(50, "first-step", 1, 0), (5, "set-up", 4, 0)]


def test_without_source_what_does_not_come_again_is_set_up():
    run = Simulation()
    run.wait(5, times=4)
    run.wait(50)
    for _ in range(12):
        run.step(95)
        run.wait(50)
    assert findings(run, unreadable) == [(50, "every-step", 1, 1), (5, "set-up", 4, 0)]


def test_what_follows_the_last_step_in_every_step_is_not_after():
    run = train(12, body=lambda run, step: run.wait(97), after=lambda run: run.wait(120))
    assert findings(run) == [(97, "every-step", 1, 1), (120, "after", 1, 0)]


def test_evaluation():
    def body(run, step):
        run.wait(50)
        if step == 6:
            run.phase = "eval"
            run.wait(150, times=7)
            run.wait(50)
            run.phase = "train"

    run = train(12, body=body)
    assert findings(run) == [(50, "every-step", 1, 1), (150, "evaluation", 8, 0)]
    spots = report(run.session(), read).findings[1].spots
    assert [(spot.line.line, spot.waits) for spot in spots] == [(50, 1), (150, 7)]
    steps = report(run.session(), read).steps
    assert (steps.waits_per_step, steps.least, steps.most) == (1, 1, 1)


def test_what_follows_evaluation_is_training_before_anything_tells():
    def body(run, step):
        if step % 5 == 4:
            run.phase = "eval"
            run.wait(150, times=7)
        run.wait(50, times=3)  # the next batch
        run.phase = "train"

    assert findings(train(12, body=body)) == [(50, "every-step", 3, 1), (150, "evaluation", 7, 0)]


def test_a_line_that_serves_training_and_evaluation_counts_for_each():
    def body(run, step):
        run.wait(50)
        if step == 6:
            run.phase = "eval"
            run.wait(50, times=20)
            run.phase = "train"

    assert findings(train(12, body=body)) == [(50, "every-step", 1, 1), (50, "evaluation", 20, 0)]


def test_what_a_stopped_script_does_is_not_its_own():
    run = train(12, body=lambda run, step: run.wait(50), after=lambda run: run.wait(120))
    (finding,) = report(run.session(ending=Ending(how="enough-steps")), read).findings
    assert (finding.line.line, finding.frequency.total) == (50, 11)


def test_no_steps():
    run = Simulation()
    run.wait(5, times=3)
    document = report(run.session(), read)
    assert document.steps.seen == 0
    assert [finding.frequency.when for finding in document.findings] == ["no-steps"]
    assert document.sentence == "3 syncs in train.py, but no training step was seen"
    assert (document.verdict.level, document.verdict.per) == ("unknown", "in all")


def test_nothing_at_all():
    document = report(Session())
    assert document.sentence == "No syncs in the run, but no training step was seen"
    assert document.findings == ()


def test_five_critic_steps_are_one_step():
    run = Simulation()
    for _ in range(6):
        for _ in range(5):
            run.mark("backward", 40)
            run.wait(41)
            run.step(42, "Adam.step#0")
        run.mark("backward", 90)
        run.step(95, "Adam.step#1")
        run.wait(97)
    assert findings(run) == [(41, "every-step", 6, 1)]
    (finding,) = report(run.session(), read).findings
    assert [(spot.line.line, spot.waits) for spot in finding.spots] == [(41, 5), (97, 1)]
    assert report(run.session(), read).steps.waits_per_step == 6


def test_two_waits_of_one_line_are_one_finding():
    def body(run, step):
        run.wait(50, operator="aten::any", detail="first")
        run.wait(50, operator="aten::any", detail="second")

    (finding,) = report(train(12, body=body).session(), read).findings
    assert finding.frequency.waits == 2
    assert len(finding.sites) == 2


ENGINE = library_line(800, "torch/autograd/graph.py", "_engine_run_backward")


def test_forward_and_backward_of_one_line_are_two_findings():
    def body(run, step):
        run.wait(50, operator="aten::nonzero", mechanism="size", call="")
        run.wait(90, below=(ENGINE,), operator="aten::nonzero", node="IndexBackward0", forward=run.stack(50))

    results = report(train(12, body=body).session(), read).findings
    assert [(finding.line.line, finding.backward, finding.node) for finding in results] == [
        (50, False, ""),
        (50, True, "IndexBackward0"),
    ]


def test_the_users_backward_code_is_reported_at_its_line():
    def body(run, step):
        inner = (line(20, function="Mine.backward"), ENGINE)
        run.wait(90, below=inner, node="MineBackward", forward=run.stack(50))

    (finding,) = report(train(12, body=body).session(), read).findings
    assert (finding.line.line, finding.backward) == (20, False)


def test_a_wait_in_a_library_is_reported_at_the_users_line():
    below = (
        library_line(93, "torchmetrics/aggregation.py", "_cast_and_nan_check_input"),
        library_line(500, "torchmetrics/metric.py", "wrapped_func"),
    )
    run = train(12, body=lambda run, step: run.wait(50, below=below, call="Tensor.__bool__"))
    (finding,) = report(run.session(), read).findings
    assert finding.line.line == 50
    assert finding.library_stack == below


def test_the_worst_first():
    def body(run, step):
        run.wait(20, operator="aten::nonzero", mechanism="size", call="")
        run.wait(30, times=5, operator="aten::_unique2", mechanism="size", call="")
        if step % 2:
            run.wait(40, times=9)

    run = train(12, before=lambda run: run.wait(2, times=99), body=body)
    assert [row[0] for row in findings(run)] == [30, 40, 20, 2]  # 5, 4.5 and 1 per step


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (1, "Not enough was seen to tell: no syncs in 1 training step"),
        (12, "2 syncs in every step"),
    ],
)
def test_sentence(steps, sentence):
    run = train(steps, body=lambda run, step: run.wait(97, times=2))
    assert report(run.session(), read).sentence == sentence


def test_an_uneven_run_states_the_spread():
    run = train(12, body=lambda run, step: run.wait(97, times=1 + step % 2))
    assert report(run.session(), read).sentence.startswith("1 to 2 syncs in every step")


def test_too_few_steps_are_said_to_be_too_few():
    assert report(train(4).session(), read).notes == (
        "4 steps are too few to separate syncs in every step from those in the first steps",
    )
    assert report(train(12).session(), read).notes == ()


def test_one_line_with_two_rhythms_is_two_findings():
    """A library's entry line may wait in each step and, elsewhere below it, now and then."""
    often = (library_line(5, "lib/loop.py", "read"),)
    seldom = (library_line(9, "lib/log.py", "read"),)

    def body(run, step):
        run.wait(97, below=often)
        if step % 5 == 4:
            run.wait(97, below=seldom, times=2)

    rows = findings(train(22, body=body))
    assert rows == [(97, "every-step", 1, 1), (97, "some-steps", 2, 5)]


def test_a_line_reached_on_two_ways_in_turn_is_one_finding():
    def body(run, step):
        run.outer = (line(150 if step % 3 else 160, function="main"),)
        run.wait(97)
        run.outer = ()

    assert findings(train(20, body=body)) == [(97, "every-step", 1, 1)]


def test_a_script_that_put_nothing_on_the_gpu_is_not_praised():
    from gapless.commands import _gate
    from gapless.model import Environment

    run = train(12)
    unused = Environment(device="NVIDIA A100", emulated=True, unused=True)
    document = report(run.session(environment=unused), read)
    assert (
        document.sentence == "train.py put nothing on the GPU: it ran on the CPU, so there was nothing "
        "to wait for"
    )
    assert _gate.find_exceeded_limits(document, 0, ())
    assert not _gate.find_exceeded_limits(document, None, ())


def below(number: int, function: str = "read", code: str = "") -> tuple:
    return (library_line(number, "somelib/loop.py", function, code),)


def test_a_library_s_lines_are_one_entry_at_the_user_s_line():
    def body(run, step):
        for number in (5, 9, 12, 30, 31):
            run.wait(97, below=below(number))
        run.wait(97, below=below(40), operator="aten::nonzero", mechanism="size", call="")

    by_code = {finding.code: finding for finding in report(train(12, body=body).session(), read).findings}
    assert by_code.keys() == {"GAP149", "GAP110"}, "what another rule knows stays apart"
    reads = by_code["GAP149"]
    assert (reads.line.line, reads.frequency.waits, reads.spots) == (97, 5, ())
    for place in ("loop.py:5 (read)", "loop.py:9 (read)", "loop.py:12 (read)", "and 2 more lines"):
        assert place in reads.remedy
    assert reads.remedy.count("call that less often") == 1
    assert "torch.nonzero" not in reads.remedy
    assert "mask" in by_code["GAP110"].remedy


def test_lines_of_the_user_s_that_call_the_same_of_a_library_are_told_together_else_apart():
    def body(run, step):
        for caller in (96, 97, 98):
            for number in (5, 9) if caller < 98 else (5,):
                run.wait(caller, below=below(number))

    pair, single = report(train(12, body=body).session(), read).findings
    assert [spot.line.line for spot in pair.spots] == [96, 97]
    assert [spot.waits for spot in pair.spots] == [2, 2]
    assert (single.line.line, single.frequency.waits) == (98, 1)


def test_a_library_s_line_with_an_option_of_its_own_stays_apart():
    def body(run, step):
        run.wait(97, below=below(5))
        run.wait(97, below=(library_line(7, "pyro/util.py", "warn_if_nan"),))

    remedies = [finding.remedy for finding in report(train(12, body=body).session(), read).findings]
    assert any("pyro.enable_validation(False)" in remedy for remedy in remedies)
    assert len(remedies) == 2
