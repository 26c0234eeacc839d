"""Which marks end a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions import Simulation

from gapless.analyze.run.steps import StepTally, find_steps

D, G = "Adam.step#0", "Adam.step#1"


def steps_of(*names: str):
    """The steps told by marks: ``p`` the profiler's, ``u`` the user's, else an optimizer's by name."""
    run = Simulation()
    for name in names:
        kind = {"p": "profiler", "u": "user", "b": "backward"}.get(name, "optimizer")
        run.mark(kind, 1, name if kind == "optimizer" else "")
    return find_steps(run.marks)


CASES = {
    "no marks": ((), (), ""),
    "one optimizer": (["SGD.step#0"] * 3, (0, 1, 2), "SGD.step"),
    "backward passes in between": (["b", "b", "SGD.step#0"] * 2, (0, 1), "SGD.step"),
    "two in turn": ([D, G] * 3, (1, 3, 5), "the 2nd Adam.step (with 1 of the 1st Adam.step to each)"),
    "stopped in the middle": (
        [D, G, D, G, D],
        (1, 3),
        "the 2nd Adam.step (with 2 of the 1st Adam.step to each)",
    ),
    "five to one": (([D] * 5 + [G]) * 2, (5, 11), "the 2nd Adam.step (with 5 of the 1st Adam.step to each)"),
    "of two kinds": (["SGD.step#0", "Adam.step#1"] * 2, (1, 3), "Adam.step (with 1 of SGD.step to each)"),
    "one after the other": ([D] * 3 + [G] * 2, (0, 1, 2, 3, 4), "the 1st Adam.step or the 2nd Adam.step"),
    "many in turn": (
        [f"Adam.step#{n}" for n in range(10)] * 2,
        (9, 19),
        "the 10th Adam.step (with 9 of 9 other optimizers to each)",
    ),
    "a rare one": (([D] * 40 + [G]) * 2, (*range(40), *range(41, 81)), None),
    "profiler": ([D, "p"] * 3, (1, 3, 5), "profiler.step()"),
    "profiler for a part only": ([D, "p"] * 2 + [D] * 20, (0, 2, *range(4, 24)), "Adam.step"),
    "profiler alone": (["p"] * 3, (0, 1, 2), "profiler.step()"),
    "user": ([D, "u", "p"] * 2, (1, 4), "gapless.step()"),
}


@pytest.mark.parametrize(("names", "ends", "source"), CASES.values(), ids=CASES)
def test_steps(names, ends, source):
    steps = steps_of(*names)
    assert steps.ends == tuple(ends)
    if source is not None:
        assert steps.source == source


def calls_of(*lines: int):
    """The steps told by calls of a model at these lines of the user's."""
    run = Simulation()
    for line in lines:
        run.mark("forward", line, "Net")
    return find_steps(run.marks)


@pytest.mark.parametrize(
    ("lines", "ends"),
    [
        ([7] * 4, (0, 1, 2, 3)),
        ([7, 8] * 3, (1, 3, 5)),  # two models for each batch
        ([3, *[7] * 12], tuple(range(1, 13))),  # a call before the loop
        ([3, *[7] * 12, 3, *[7] * 12], (*range(1, 13), *range(14, 26))),  # one for each pass of it
        ([7] * 5 + [9] * 5, tuple(range(10))),  # one loop after the other
    ],
)
def test_calls_of_a_model_end_iterations_where_nothing_is_trained(lines, ends):
    steps = calls_of(*lines)
    assert (steps.ends, steps.source) == (ends, "a call of Net")


@given(st.lists(st.sampled_from([D, G, "SGD.step#2", "p", "b"]), max_size=60))
def test_counting_while_it_runs_agrees_with_counting_afterwards(names):
    run, tally = Simulation(), StepTally()
    for name in names:
        kind = {"p": "profiler", "b": "backward"}.get(name, "optimizer")
        run.mark(kind, 1, name)
        tally.add(run.marks[-1])
        assert tally.count == find_steps(run.marks).seen


def test_ticks_belong_to_the_step_that_ends_after_them():
    steps = steps_of(*[D, G] * 3)
    assert [steps.of(tick) for tick in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(("step_count", "steady"), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2), (12, 10)])
def test_the_first_steps_warm_up(step_count, steady):
    assert len(steps_of(*[D] * step_count).steady) == steady


def test_backward_passes_are_steps_where_there_is_no_optimizer():
    run = Simulation()
    for _ in range(5):
        run.mark("backward", 40)
        run.mark("gradients", 40)
    steps = find_steps(run.marks)
    assert (steps.seen, steps.source) == (5, "a backward pass (no optimizer)")
    assert steps.ends == (0, 1, 2, 3, 4)


def test_two_backward_passes_in_turn_are_one_step():
    run = Simulation()
    for _ in range(6):
        for line in (40, 50):
            run.mark("gradients", line)
    assert find_steps(run.marks).ends == (1, 3, 5, 7, 9, 11)


def test_an_optimizer_is_believed_before_backward_passes():
    run = Simulation()
    run.mark("gradients", 40)
    for _ in range(3):
        run.step()
    assert find_steps(run.marks).source == "SGD.step"
