"""Processes on simulated cores: who computes when, worked by hand, and laws."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.loading.scheduler import CALL, CPU, GET, PASS, AnsweringServer, MessageQueue, SimulatedKernel
from gapless.model.loading import Machine

MS = 1e6


def ended(machine: Machine, *processes) -> list[float]:
    """When each of them ends."""
    kernel, ends = SimulatedKernel(machine), [-1.0] * len(processes)

    def noted(number, steps):
        yield from steps
        ends[number] = kernel.now

    for number, steps in enumerate(processes):
        kernel.start(noted(number, iter(steps)))
    kernel.run(lambda: min(ends) >= 0)
    return ends


@pytest.mark.parametrize(
    ("machine", "works", "ends"),
    [
        (Machine(allowed=1), [10], [10]),
        (Machine(allowed=1), [10, 10], [20, 20]),
        (Machine(allowed=1), [10, 30], [20, 40]),
        (Machine(allowed=2), [10, 30], [10, 30]),
        (Machine(allowed=2), [10, 10, 5], [15, 10, 10]),  # the first and the third share a core
        (Machine(allowed=1, others=1), [10], [20]),
        (Machine(allowed=2, others=1), [10], [10]),
        (Machine(allowed=1, quota=0.5), [10], [20]),
        (Machine(allowed=2, quota=1.0), [10, 10], [20, 20]),
        (Machine(allowed=2, together=0.5), [10], [10]),
        (Machine(allowed=2, together=0.5), [10, 10], [20, 20]),
    ],
)
def test_by_hand(machine, works, ends):
    assert ended(machine, *([(CPU, work * MS)] for work in works)) == pytest.approx(
        [end * MS for end in ends]
    )


def test_time_passes_beside_others_and_cores_are_free_meanwhile():
    assert ended(Machine(allowed=1), [(PASS, 20 * MS), (CPU, 10 * MS)], [(CPU, 20 * MS)]) == [
        30 * MS,
        20 * MS,
    ]


def test_a_core_that_becomes_idle_takes_a_process_from_another():
    ends = ended(Machine(allowed=2), [(CPU, 10 * MS)], [(CPU, 20 * MS)], [(CPU, 20 * MS)])
    assert ends[0] == 20 * MS  # beside the third
    assert max(ends) == 30 * MS  # the third has the rest of a core, and then none needs to share


def test_three_on_two_cores_get_equal_parts_in_the_long_run():
    ends = ended(Machine(allowed=2), *([(CPU, 2000 * MS)] for _ in range(3)))
    assert ends == pytest.approx([3000 * MS] * 3, rel=0.05)
    alone = ended(Machine(allowed=2, others=1), *([(CPU, 2000 * MS)] for _ in range(2)))
    assert alone == pytest.approx([3000 * MS] * 2, rel=0.05)


def test_others_for_a_part_of_the_time():
    (end,) = ended(Machine(allowed=1, others=0.4), [(CPU, 1000 * MS)])
    assert 1000 / 0.6 * MS * 0.8 < end < 2000 * MS  # at most equal parts, at least what they leave


def test_messages_come_in_order_to_those_who_wait():
    kernel, queue, got = SimulatedKernel(Machine(allowed=1)), MessageQueue(), []

    def reads(name):
        for _ in range(2):
            got.append((name, (yield GET, queue), kernel.now))

    def writes():
        for number in range(4):
            yield CPU, 10 * MS
            kernel.put(queue, number)

    for actor in (reads("a"), reads("b"), writes()):
        kernel.start(actor)
    kernel.run(lambda: len(got) == 4)
    assert got == [("a", 0, 10 * MS), ("b", 1, 20 * MS), ("a", 2, 30 * MS), ("b", 3, 40 * MS)]


@pytest.mark.parametrize(("longest", "end"), [(5, 5), (50, 30), (0, 0)])
def test_a_call_is_answered_by_who_is_idle_or_after_a_time(longest, end):
    kernel, server, ends = SimulatedKernel(Machine(allowed=2)), AnsweringServer(busy=True), []

    def serves():
        yield CPU, 30 * MS
        kernel.idle(server)

    def calls():
        yield CALL, (server, longest * MS)
        ends.append(kernel.now)

    kernel.start(serves())
    kernel.start(calls())
    kernel.run(lambda: False)  # until nobody has anything left to do: an answered call's time also passes
    assert ends == [end * MS]


work = st.lists(
    st.tuples(st.sampled_from([CPU, PASS]), st.floats(0.01 * MS, 50 * MS)), min_size=1, max_size=6
)


@given(st.lists(work, min_size=1, max_size=5), st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
@settings(max_examples=80, deadline=None)
def test_cores_do_no_more_than_they_can(processes, allowed, other_load):
    machine = Machine(allowed=allowed, others=other_load)
    ends = ended(machine, *processes)
    computing = sum(work for steps in processes for verb, work in steps if verb == CPU)
    assert max(ends) * allowed >= computing * (1 - 1e-9)
    for steps, end in zip(processes, ends, strict=True):
        assert end >= sum(work for _, work in steps) * (1 - 1e-9)
    everything = sum(work for steps in processes for _, work in steps)
    assert max(ends) <= everything * (1 + math.ceil(other_load)) * 1.01 + MS
    assert ends == ended(machine, *processes)
