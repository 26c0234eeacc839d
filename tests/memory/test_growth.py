"""What grows from step to step."""

from __future__ import annotations

from gapless.memory.growth import growth
from gapless.memory.recorder import Recorder
from gapless.memory.report import report
from gapless.memory.sizes import MIB
from gapless.model.source import SourceLine

KEPT = SourceLine("/home/me/train.py", 7, "train")
OTHER = SourceLine("/home/me/train.py", 9, "train")


def run(steps: int, keep, size: int = MIB):
    """`keep(step)` tensors of each step stay; another one ends with the following step."""
    recorder = Recorder()
    recorder.alloc("weights", 4 * MIB, stack=[OTHER])
    for step in range(steps):
        for number in range(keep(step)):
            recorder.alloc((step, number), size, stack=[KEPT], kind="activation")
        recorder.free(("loss", step - 1))
        recorder.alloc(("loss", step), 512, stack=[OTHER])
        recorder.step()
    return recorder.run()


def test_a_leak_has_its_line_and_its_size_per_step():
    (one,) = growth(run(12, lambda step: 2))
    assert (one.line, one.bytes, one.tensors, one.steps) == (KEPT, 2 * MIB, 2.0, 9)


def test_what_the_last_step_holds_is_no_growth():
    assert growth(run(12, lambda step: 0)) == ()


def test_what_is_made_once_is_no_growth():
    assert growth(run(12, lambda step: 5 if step < 2 else 0)) == ()


def test_what_comes_now_and_then_is_no_growth():
    assert growth(run(12, lambda step: step % 3 == 0)) == ()


def test_a_list_that_ends_with_the_epoch_is_no_growth():
    recorder = Recorder()
    for step in range(12):
        recorder.alloc(step, MIB, stack=[KEPT])
        recorder.step()
    for step in range(12):
        recorder.free(step)
    assert growth(recorder.run()) == ()


def test_few_steps_tell_nothing():
    assert growth(run(6, lambda step: 1)) == ()
    assert growth(run(7, lambda step: 1)) != ()


def test_the_ends_of_steps_count_calls_since_the_beginning():
    made = report(run(12, lambda step: 1, size=30 * MIB))
    assert len(made.ends) == 12
    assert [one.taken for one in made.ends] == [3 + step for step in range(12)]
    assert made.ends[-1].allocated == 12 * 30 * MIB + 4 * MIB + 512
    assert made.ends[-1].given == 0
