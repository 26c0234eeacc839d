"""An iteration is what makes gradients and uses them: many optimizers, several lines, several threads."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions import Simulation, line

from gapless.analyze import report
from gapless.analyze.run.steps import RunSteps, find_steps
from gapless.analyze.run.turns import are_in_turn
from gapless.analyze.verdicts.session_verdict import describe_syncs
from gapless.model import Event, Session, Site, StepMark
from gapless.model.tally import StepTally


def optimizer(number: int) -> str:
    return f"Adam.step#{number}"


def rounds(*together: tuple[int, ...], strand: int = 0) -> list[StepMark]:
    """The marks of optimizers that step with the gradients of one backward pass each."""
    marks = []
    for names in together:
        for position, number in enumerate(names):
            kind = "along" if position else "optimizer"
            marks.append(StepMark(kind=kind, tick=0, time=0.0, name=optimizer(number), strand=strand))
    return marks


def counts(marks: list[StepMark]) -> list[int]:
    """Steps after each mark."""
    tally, ends = StepTally(), []
    for mark in marks:
        tally.add(mark)
        if mark.kind != "along":
            ends.append(tally.count)
    return ends


@pytest.mark.parametrize(
    ("together", "source"),
    [
        ([(*range(20),)] * 4, "Adam.step and those of 19 other optimizers"),
        ([(0, 1, 2), (0, 2), (0, 1), (0, 1, 2)], None),  # the gradients of some are missing now and then
        ([(0, 1), (1,), (0, 1), (1,)], None),  # the first of them skips every second iteration
        ([(1,), (0, 1), (1,), (0, 1)], None),
    ],
    ids=["all", "some", "first", "later"],
)
def test_optimizers_of_one_backward_pass_make_one_iteration(together, source):
    marks = rounds(*together)
    assert counts(marks)[-1] == find_steps(marks).seen == len(together)
    assert source is None or find_steps(marks).source == source


def test_no_iteration_is_counted_twice_while_the_first_is_made():
    assert counts(rounds(*[(*range(300),)] * 3)) == [1, 2, 3]


def test_a_step_of_all_before_the_training_joins_nobody():
    marks = rounds((0, 1), *[(0,), (1,)] * 10)
    assert find_steps(marks).seen == 10  # in turn, as without it


def test_accumulated_gradients_make_one_iteration():
    run = Simulation()
    for _ in range(3):
        for _ in range(4):
            run.mark("backward", 10)
        run.step(10)
    assert find_steps(run.marks).seen == 3


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), max_size=30))
def test_counting_while_it_runs_agrees_with_counting_afterwards(together):
    marks = rounds(*(tuple(sorted(names)) for names in together))
    tally = StepTally()
    for mark in marks:
        tally.add(mark)
    assert tally.count == find_steps(marks).seen <= len(together)


# -- several lines ----------------------------------------------------------------------------------------

LOOPS = """
for i in range(9):
    one.backward()
    two.backward()

for i in range(9):
    if i % 2:
        one.backward()
    else:
        two.backward()

for i in range(9):
    if i % 2:
        one.backward()
        continue
    two.backward()

for i in range(9):
    for j in range(5):
        one.backward()
    two.backward()

while True:
    try:
        one.backward()
    except ValueError:
        two.backward()

one.backward()
two.backward()

def train():
    for i in range(9):
        with autocast():
            one.backward()
        if i:
            two.backward()
"""


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (3, 4, True), (8, 10, False), (14, 16, False), (20, 21, False), (25, 27, False), (29, 30, False),
        (35, 37, True), (3, 8, False),
    ],
)  # fmt: skip
def test_what_is_called_in_each_pass_of_a_loop(first, second, both):
    stacks = [(line(number, "/work/train.py", "train"),) for number in (first, second)]
    assert are_in_turn(*stacks, lambda file: LOOPS) is both
    assert are_in_turn(*reversed(stacks), lambda file: LOOPS) is both


def test_without_source_nothing_is_taken_to_be_in_turn():
    def missing(file: str) -> str:
        raise OSError

    assert not are_in_turn((line(3),), (line(4),), missing)


@pytest.mark.parametrize(("lines", "step_count"), [((3, 4), 4), ((8, 10), 8)], ids=["both", "either"])
def test_an_optimizer_that_steps_at_two_lines_of_each_pass_makes_one_iteration(lines, step_count):
    run = Simulation()
    for _ in range(4):
        for number in lines:
            run.step(number)
    steps = find_steps(run.marks, lambda file: LOOPS)
    assert steps.seen == step_count
    assert steps.source == ("SGD.step (at 2 lines of the loop)" if step_count == 4 else "SGD.step")


# -- several threads --------------------------------------------------------------------------------------


def side_by_side(order: list[int], waits: dict[int, int]) -> Session:
    """Threads that make a step whenever their number comes, with so many waits, at one line each."""
    sites = tuple(
        Site(operator="aten::item", mechanism="read", call="Tensor.item", stack=(line(10 * number),))
        for number in waits
    )
    at = {number: position for position, number in enumerate(waits)}
    events, marks = [], []
    for tick, number in enumerate(order):
        if waits[number]:
            events.append(Event(site=at[number], tick=tick, waits=waits[number], strand=number))
        name = optimizer(number)
        marks.append(StepMark(kind="optimizer", tick=tick, time=0.0, name=name, strand=number))
    return Session(sites=sites, events=tuple(events), marks=tuple(marks), strands=(0, 0, 0, 0))


@pytest.mark.parametrize(
    "order", [[1, 2] * 8, [1, 1, 2, 1, 2, 2] * 4, [1] * 3 + [1, 2] * 5 + [2] * 4], ids=str
)
def test_threads_that_train_side_by_side_have_their_own_steps(order):
    document = report(side_by_side(order, {1: 1, 2: 3}), priced=False)
    assert document.steps.side_by_side == (1.0, 3.0)
    assert {finding.line.line: finding.frequency.waits for finding in document.findings} == {10: 1.0, 20: 3.0}
    assert {finding.frequency.when for finding in document.findings} == {"every-step"}
    expected = "1 sync per step in one training loop and 3 in the one beside it"
    assert document.verdict.sentence == expected


def test_rare_syncs_of_parallel_loops_show_their_frequency():
    document = report(side_by_side([1, 2] * 12, {1: 1, 2: 0}), priced=False)
    rare = msgspec.structs.replace(document.steps, side_by_side=(0.1, 0.0))
    expected = "1 sync every 10 steps in one training loop and no syncs in the one beside it"
    assert describe_syncs(msgspec.structs.replace(document, steps=rare)) == expected


def test_threads_one_after_the_other_have_one_sequence_of_steps():
    steps = find_steps(side_by_side([1] * 4 + [2] * 4, {1: 1, 2: 1}).marks)
    assert (steps.seen, steps.strands) == (8, {})


def test_threads_that_step_the_same_optimizer_train_one_model():
    marks = [mark for strand in (1, 2, 1, 2, 1) for mark in rounds((0,), strand=strand)]
    assert (find_steps(marks).seen, find_steps(marks).strands) == (5, {})


def test_enough_has_been_seen_when_each_thread_has_made_its_steps():
    marks = side_by_side([1, 2, 1, 1, 2, 1, 2], {1: 1, 2: 1}).marks
    assert counts(list(marks))[2:] == [1, 1, 2, 2, 3]


def test_a_thread_that_is_over_holds_nobody_up():
    marks = side_by_side([1, 2] * 3 + [2] * 60, {1: 1, 2: 1}).marks
    assert counts(list(marks))[-1] == 63


@given(st.lists(st.sampled_from([1, 2, 3]), max_size=40))
def test_each_event_is_in_a_step_of_its_own_thread(order):
    session = side_by_side(order, {1: 1, 2: 1, 3: 1})
    steps = find_steps(session.marks)
    placed = steps.assign_ticks(session.events, session.strands)
    assert [steps.of(event.tick) < steps.seen for event in placed] == [True] * len(order)
    if steps.strands:
        for number in set(order):
            part = steps.parts[steps.loop_of(Event(site=0, tick=0, strand=number), session.strands)]
            own = [steps.of(event.tick) for event in placed if event.strand == number]
            assert own == list(part)


def test_what_a_helper_of_a_thread_does_is_in_the_steps_of_that_thread():
    session = side_by_side([1, 2] * 4, {1: 1, 2: 1})
    steps = find_steps(session.marks)
    helper = Event(site=0, tick=5, strand=3)
    assert steps.loop_of(helper, (0, 0, 0, 2)) == 1
    assert steps.loop_of(helper, (0, 0, 0, 1)) == 0


def test_no_steps():
    assert find_steps([]) == RunSteps()
