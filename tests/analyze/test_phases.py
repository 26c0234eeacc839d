"""Phases: what recurs less often than steps is told by name and for each time it was seen."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions import Simulation, library_line, line

from gapless.analyze import report
from gapless.analyze.run.phases import phase_of_name, recurrence_interval
from gapless.analyze.verdicts.session_verdict import verdict
from gapless.model import Ending, Event, Recurrence, Site, SourceLine
from gapless.model.estimate import Estimate, Range
from gapless.model.finding import Caller
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Fetch, Setting
from gapless.model.planned import Planned
from gapless.model.session import decode, encode
from gapless.model.wording import describe_phase
from gapless.render._words import callers

SOURCE = "\n" * 9 + (
    "for iteration in range(9):\n"  # 10
    + "    rollout()\n" * 9
    + "    for batch in loader:\n"  # 20
    + "        work()\n" * 30
    + "    log()\n" * 9
)
"""A loop from line 10 to 59 around the training loop from 20 to 50."""
ROLLOUT, STEP, END = 12, 30, 55


def read(file: str) -> str:
    return SOURCE


def play(iterations: int = 3, updates: int = 16, rollout: int = 64) -> Simulation:
    run = Simulation()
    run.wait(5, 4)
    for _ in range(iterations):
        run.wait(ROLLOUT, rollout)
        run.events[-1] = msgspec.structs.replace(run.events[-1], calls=rollout)
        for _ in range(updates):
            run.mark("backward", 40)
            run.wait(STEP)
            run.step(45)
        run.wait(END)
    return run


def finding_rows(run: Simulation, **session: object):
    return [
        (
            finding.line.line,
            finding.frequency.when,
            finding.frequency.phase,
            finding.frequency.waits,
            finding.frequency.times,
        )
        for finding in report(run.session(**session), read).findings
    ]


def test_a_rollout_is_no_set_up():
    assert finding_rows(play()) == [
        (STEP, "every-step", "", 1, 0),
        (ROLLOUT, "phase", "rollout", 64, 3),
        (END, "phase", "iteration end", 1, 3),
        (5, "set-up", "", 4, 0),
    ]
    document = report(play().session(), read)
    assert document.steps.waits_per_step == 1
    assert document.sentence == "1 sync in every step; 64 more at each rollout (every 16 steps)"


@pytest.mark.parametrize(
    ("experiments", "when", "phase"), [(1, "set-up", ""), (3, "phase", "iteration start")]
)
def test_a_model_that_each_experiment_moves_is_no_rollout(experiments: int, when: str, phase: str):
    """Its parameters are copied one by one: the same several times, before the steps of one pass."""
    apply = library_line(960, "torch/nn/modules/module.py", "Module._apply")
    run = Simulation()
    for _ in range(experiments):
        run.wait(ROLLOUT, 64, (apply,), mechanism="h2d", operator="aten::_to_copy")
        run.events[-1] = msgspec.structs.replace(run.events[-1], calls=64)
        for _ in range(16):
            run.mark("backward", 40)
            run.wait(STEP)
            run.step(45)
    by_line = {row[0]: row for row in finding_rows(run)}
    assert by_line[ROLLOUT][1:3] == (when, phase)


@pytest.mark.parametrize(
    ("function", "phase"),
    [("collect_rollouts", "rollout"), ("evaluate_policy", "evaluation"), ("f", "evaluation")],
)
def test_a_library_s_rollout_in_evaluation_mode_is_no_evaluation(function: str, phase: str):
    checks = SourceLine("/env/torch/distributions/distribution.py", 323, "_validate_sample", library="torch")
    below = (checks, library_line(7, "policies.py", "forward"), library_line(9, "on_policy.py", function))
    run = Simulation()
    for _ in range(6):
        run.phase = "eval"
        run.wait(5, 64, below)
        run.phase = "train"
        for _ in range(2):
            run.wait(5)
            run.mark("backward", 5)
            run.step(5)
    document = report(run.session(), read)
    assert [(phase.name, phase.waits) for phase in document.phases if phase.waits] == [(phase, 64)]
    assert document.steps.waits_per_step == 1


def test_one_rollout_of_a_run_that_was_stopped_is_one():
    run = play(1, 12)
    rows = finding_rows(run, ending=Ending(how="enough-steps"))
    assert (ROLLOUT, "phase", "rollout", 64, 1) in rows
    assert "64 more in the one rollout seen" in report(run.session(), read).sentence


def test_what_to_do_first_names_the_steps_and_the_phases():
    first = report(play(3, 12).session(), read).verdict
    assert [change.unit for change in first.do_first] == ["syncs", "syncs"]
    assert {(change.before, change.after) for change in first.do_first} == {(1, 0), (64, 1)}


def test_a_step_that_waits_for_data_comes_before_what_recurs():
    use = LoaderUse(
        made=line(1),
        setting=Setting(workers=2),
        length=12,
        per_step=1.0,
        passes=3,
        ended=2,
        first=600e6,
        step=Range(*[100_000_000] * 3),
        fetch=Fetch(),
    )
    session = msgspec.structs.replace(play(3, 12).session(), loaders=(use,))
    first = report(session, read).verdict
    assert [change.unit for change in first.do_first] == ["ns", "syncs"]


def test_what_the_source_knows_of_the_period_is_told_of_one():
    phases = (Recurrence(name="rollout", every=16, times=1),)
    document = report(play(1, 12).session(phases=phases), read)
    assert "64 more at each rollout (every 16 steps)" in document.sentence


def test_phases_not_reached_are_named():
    at = SourceLine("/work/train.py", 80)
    phases = (Recurrence(name="evaluation", every=500, line=at),)
    document = report(play(1, 12).session(phases=phases, ending=Ending(how="enough-steps")), read)
    (note,) = document.verdict.not_seen
    assert note.startswith("Only 12 training steps ran; the evaluation every 500 steps (train.py:80) was not")
    assert "--steps 500" in note


@pytest.mark.parametrize(("steps", "comes"), [(0, True), (499, False), (500, True), (40, False)])
def test_what_the_run_never_comes_to_is_not_missed(steps, comes):
    phases = (Recurrence(name="epoch start", every=500),)
    run = play(1, 12).session(phases=phases, planned=Planned(steps=steps), ending=Ending(how="enough-steps"))
    assert ("epoch start" in " ".join(report(run, read).verdict.not_seen)) == comes


def test_a_pass_of_one_step_is_a_step():
    """A loop around the steps that has one of them in each pass: its code is the step's own."""
    run = play(iterations=12, updates=1)
    assert {when for _, when, *_ in finding_rows(run)} == {"every-step", "set-up"}


def test_a_checkpoint_is_recognized_by_torch_save():
    run = Simulation()
    saving = (library_line(900, "torch/serialization.py", "save"),)
    for step in range(80):
        run.mark("backward", 40)
        run.step(45)
        if step % 40 == 39:
            run.wait(48, 6, below=saving)
    (finding,) = report(run.session(), read).findings
    assert (finding.frequency.phase, finding.frequency.waits, finding.frequency.times) == ("checkpoint", 6, 2)
    assert report(run.session(), read).verdict.level == "fine"


@pytest.mark.parametrize(
    "saver",
    [
        library_line(3000, "transformers/trainer.py", "Trainer._save_checkpoint"),
        line(70, function="save_model"),
    ],
)
def test_what_is_copied_for_a_checkpoint_is_a_part_of_it(saver):
    """Within the training loop, every ten steps: one part, however it copies."""
    run = Simulation(outer=())
    for step in range(40):
        run.mark("backward", 40)
        run.step(45)
        if step % 10 == 9:
            for number, call in ((900, "torch/serialization.py"), (80, "safetensors/torch.py")):
                frames = (library_line(number, call, "save"), saver, *run.stack(48))
                run.sites.append(
                    Site(operator="aten::_to_copy", mechanism="d2h", call="Tensor.cpu", stack=frames)
                )
                run.events.append(Event(site=len(run.sites) - 1, tick=run.tick, waits=3))
    frequencies = [finding.frequency for finding in report(run.session(), read).findings]
    assert {(frequency.when, frequency.phase, frequency.times) for frequency in frequencies} == {
        ("phase", "checkpoint", 4)
    }
    assert sum(frequency.total for frequency in frequencies) == 24


def test_an_evaluation_that_a_function_is_named_for():
    run = play(2, 14, 0)
    run.outer = ()
    inner, outer = line(150, function="evaluate"), line(END, function="main")
    site = msgspec.structs.replace(run.sites[0], stack=(inner, outer))
    run.sites.append(site)
    run.events.append(msgspec.structs.replace(run.events[-1], site=len(run.sites) - 1, waits=9))
    frequencies = [
        finding.frequency for finding in report(run.session(), read).findings if finding.line.line == 150
    ]
    assert [(frequency.when, frequency.waits, frequency.times) for frequency in frequencies] == [
        ("evaluation", 9, 1)
    ]


@pytest.mark.parametrize(
    ("function", "phase"),
    [
        ("evaluate", "evaluation"),
        ("Trainer.evaluation_loop", "evaluation"),
        ("runValidation", "evaluation"),
        ("collect_rollouts", "rollout"),
        ("save_checkpoint", "checkpoint"),
        ("latest", ""),
        ("evaluated", ""),
        ("main", ""),
    ],
)
def test_names(function, phase):
    assert phase_of_name(function) == phase


@given(st.integers(2, 50), st.integers(1, 6), st.integers(0, 49), st.integers(0, 49))
def test_a_distance_is_the_one_there_is(every, times, first, early):
    at = [first + every * n for n in range(times)]
    assert recurrence_interval(at, at[-1] + 1) == (every if times > 1 else 0)
    if times > 1:  # the last of them follows the end of the run, whenever that was
        cut = at[-1] + min(early, every)
        assert recurrence_interval([*at, cut], cut) in (every, 0) if cut > at[-1] else True


WAITS = st.tuples(
    st.sampled_from([5, ROLLOUT, 22, STEP, END, 70]), st.integers(1, 90), st.sampled_from(["train", "eval"])
)


@given(st.lists(st.lists(WAITS, max_size=4), max_size=14), st.sampled_from([read, lambda file: ""]))
def test_each_wait_is_in_one_finding_in_whatever_phase(steps, source):
    session = Simulation().steps(steps, backward=40, step=45).session()
    document = report(session, source)
    recorded = sum(event.waits for event in session.events)
    assert sum(finding.frequency.total for finding in document.findings) == recorded
    for finding in document.findings:
        often = finding.frequency
        assert not often.times or often.waits * often.times == pytest.approx(often.total)
        assert bool(often.phase) == (often.when in ("evaluation", "phase"))
    for phase in document.phases:
        parts = [
            finding.frequency.waits for finding in document.findings if finding.frequency.phase == phase.name
        ]
        assert phase.waits == pytest.approx(sum(parts))


@given(st.sampled_from([True, False]))
def test_phases_are_saved(cut):
    session = play().session(phases=(Recurrence(name="rollout", every=16, times=2),), cut=3.5 if cut else 0.0)
    assert decode(encode(session)) == session


LAUNCHER = "while True:\n" + "    call()\n" * 9


@pytest.mark.parametrize("passes", [1, 2])
def test_a_librarys_loop_that_called_the_script_is_no_loop_of_its(passes: int):
    outer = (library_line(5, "fire/core.py", "Fire"), line(70, function="<module>"))
    run = Simulation(outer=outer)
    for _ in range(passes):
        run.wait(5, 4)
        for _ in range(6):
            run.wait(STEP)
            run.mark("backward", 40)
            run.step(45)
    script = "for batch in loader:\n" + "    work()\n" * 30
    document = report(run.session(), lambda file: LAUNCHER if "fire" in file else "\n" * 19 + script)
    frequencies = {
        finding.line.line: finding.frequency for finding in document.findings if finding.line is not None
    }
    assert frequencies[5].when == ("set-up" if passes == 1 else "phase")


def test_a_phase_of_every_step_is_said_to_be():
    assert describe_phase("phase", "evaluation", 11, 1) == "at each evaluation (every step)"
    assert describe_phase("phase", "evaluation", 3, 500) == "at each evaluation (every 500 steps)"
    assert describe_phase("phase", "evaluation", 3) == "at each evaluation"


def test_ways_to_a_line_are_those_of_the_steady_steps():
    first, later = (Simulation(outer=(line(number),)) for number in (101, 102))
    run = later
    run.outer, steady = first.outer, run.outer
    run.wait(STEP)
    run.step(45)
    for _ in range(6):
        run.outer = steady
        run.wait(STEP)
        run.step(45)
    (finding,) = (
        candidate
        for candidate in report(run.session(), lambda file: "").findings
        if candidate.frequency.when == "every-step"
    )
    assert len(finding.callers) < 2


def test_call_paths_to_a_line_are_shown_down_to_their_difference():
    shared = tuple(line(number, function="f") for number in (1, 2, 3))
    ways = [Caller((*shared, line(number, function="g")), 2.0) for number in (7, 9)]
    (finding,) = report(play(1).session(), read).findings[:1]
    assert callers(msgspec.structs.replace(finding, callers=tuple(ways)), lambda file: "a.py") == [
        f"2× from a.py:1 f, a.py:2 f, a.py:3 f, a.py:{number} g" for number in (7, 9)
    ]
    apart = [Caller((line(number, function="g"), *shared), 2.0) for number in (7, 9)]
    assert (
        callers(msgspec.structs.replace(finding, callers=tuple(apart)), lambda file: "a.py")[0]
        == "2× from a.py:7 g, a.py:1 f, a.py:2 f"
    )


def test_syncs_only_in_evaluated_steps_are_counted_without_a_price():
    """An epoch may begin with them: its first step is also the one behind an evaluation."""
    run = Simulation()
    for _ in range(3):
        for at in range(5):
            if not at:
                run.wait(STEP, 25)
                run.wait(STEP + 1, 25)
            run.mark("backward", 40)
            run.step(45)
        run.phase = "eval"
        run.wait(END, 4)
        run.phase = "train"
    document = report(run.session(), read)
    assert document.sentence.startswith("50 syncs every 5 steps; 4 more at each evaluation (every 5 steps)")
    estimate = Estimate(step=Range(1_000_000, 2_000_000, 3_000_000), limiter="host", sure=0.9)
    answer = verdict(msgspec.structs.replace(document, estimate=estimate))
    assert answer.sentence == document.sentence
    assert [(change.before, change.after, change.unit) for change in answer.do_first] == [
        (change.before, change.after, change.unit) for change in document.verdict.do_first
    ]
