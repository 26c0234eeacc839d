"""A run whose allocations end earlier: the same requests, none of them alive where it is freed."""

from hypothesis import given
from hypothesis import strategies as st

from gapless.memory.early import free_earlier
from gapless.memory.recorder import Recorder
from gapless.memory.simulate import Simulation
from gapless.model.memory import ALLOC, FREE, MemoryRun, check

MIB = 1 << 20
SIZES = (1, *range(2, 41, 2))
"""MiB of which no block is larger than its request: what is left of a free block is always split off.

Of other sizes a tensor may take more, in a block that an earlier end has left to it.
"""


@st.composite
def runs(draw: st.DrawFn) -> tuple[MemoryRun, dict[int, int]]:
    """A run, and for some of its allocations a later row to be freed before."""
    recorder, alive = Recorder(), []
    for number in range(draw(st.integers(1, 20))):
        if alive and draw(st.booleans()):
            recorder.free(alive.pop(draw(st.integers(0, len(alive) - 1))))
        else:
            recorder.alloc(number, draw(st.sampled_from(SIZES)) * MIB)
            alive.append(number)
    run = recorder.run()
    recorded_runs = [row for row, action in enumerate(run.action) if action == ALLOC]
    rows = {row: draw(st.integers(row + 1, len(run))) for row in recorded_runs if draw(st.booleans())}
    return run, rows


def lifetimes(run: MemoryRun) -> dict[int, tuple[int, int]]:
    """How many requests were made before each allocation, and before it ended."""
    lifetimes_found, requests = {}, 0
    for action, ident in zip(run.action, run.ident, strict=True):
        if action == ALLOC:
            lifetimes_found[ident] = (requests, -1)
            requests += 1
        elif action == FREE:
            lifetimes_found[ident] = (lifetimes_found[ident][0], requests)
    return {ident: (begin, requests if end < 0 else end) for ident, (begin, end) in lifetimes_found.items()}


@given(runs())
def test_the_same_is_requested_and_what_is_named_ends_where_it_is_said(drawn):
    run, rows = drawn
    less = free_earlier(run, rows)
    assert check(less) == ""
    pairs = zip(less.action, less.size, strict=True)
    assert [size for action, size in pairs if action == ALLOC] == [
        size for action, size in zip(run.action, run.size, strict=True) if action == ALLOC
    ]
    was, now = lifetimes(run), lifetimes(less)
    for row, before in rows.items():
        ident = run.ident[row]
        requests = sum(action == ALLOC for action in run.action[:before])
        assert now[ident] == (was[ident][0], min(was[ident][1], requests))
    named = {run.ident[row] for row in rows}
    assert {ident: life for ident, life in now.items() if ident not in named} == {
        ident: life for ident, life in was.items() if ident not in named
    }


@given(runs())
def test_tensors_that_end_earlier_never_need_more_at_once(drawn):
    run, rows = drawn
    before, after = Simulation(run).go().outcome(), Simulation(free_earlier(run, rows)).go().outcome()
    assert after.peak_allocated <= before.peak_allocated


def test_nothing_named_changes_nothing():
    recorder = Recorder()
    recorder.alloc("a", MIB)
    recorder.alloc("b", 2 * MIB)
    recorder.free("a")
    run = recorder.run()
    less = free_earlier(run, {})
    assert (less.action, less.ident, less.size) == (run.action, run.ident, run.size)
