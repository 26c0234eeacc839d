"""What only a name holds: found, priced by an independent reckoning, and named."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.memory.fits import fits
from gapless.memory.kept import find_kept
from gapless.memory.recorder import Recorder
from gapless.memory.trials import TrialConditions
from gapless.model.memory import ALLOC, FREE, MemoryRun, check
from gapless.model.memory import STEP as STEP_END
from gapless.model.source import SourceLine

MIB = 1 << 20
FORWARD = SourceLine("/me/model.py", 4, "forward")
LOOP = SourceLine("/me/train.py", 3, "train")
STEP = SourceLine("/me/train.py", 6, "train")
SOURCE = """\
def train():
    for x in loader:
        out, loss = model(x)
        (total) = (
            criterion(out))
        optimizer.step()
        seen.append(model(x))
"""


def script(file: str) -> str:
    return SOURCE if file == LOOP.file else ""


def training(steps: int, *, deletes: bool = False, also: int = 0) -> Recorder:
    """`out` of 8 MiB is made anew while the old one lives; the peak, of 16 MiB more, follows at once."""
    recorder = Recorder()
    recorder.alloc("weights", 32 * MIB, stack=[STEP], kind="parameter")
    for number in range(steps):
        recorder.alloc(("out", number), 8 * MIB, stack=[FORWARD, LOOP], kind="activation")
        recorder.alloc("work", 16 * MIB, stack=[FORWARD, STEP], kind="activation")
        recorder.free("work")
        if number and not deletes:
            recorder.free(("out", number - 1))
        recorder.alloc("state", also or 1, stack=[STEP], kind="optimizer")
        recorder.free("state")
        if deletes:
            recorder.free(("out", number))
        recorder.step()
    return recorder


def test_what_the_next_step_replaces_is_found():
    (kept_item,) = find_kept(training(5).run(), script)
    assert (kept_item.line, kept_item.name, kept_item.bytes, kept_item.tensors, kept_item.steps) == (
        FORWARD,
        "out, loss",
        8 * MIB,
        1,
        4,
    )
    assert (kept_item.before, kept_item.after, kept_item.saves, kept_item.sure) == (
        64 * MIB,
        56 * MIB,
        8 * MIB,
        False,
    )


@pytest.mark.parametrize(
    "run",
    [
        training(5, deletes=True).run(),
        training(1).run(),
        training(2).run(),  # once may be chance
        training(5, also=64 * MIB).run(),  # the peak is elsewhere
        MemoryRun(),
    ],
)
def test_changes_that_save_nothing_are_not_listed(run):
    assert find_kept(run) == ()


def test_without_the_source_there_is_no_name():
    assert find_kept(training(5).run())[0].name == ""
    assert find_kept(training(5).run(), lambda file: "def (")[0].name == ""


@pytest.mark.parametrize(("number", "name"), [(3, "out, loss"), (5, "total"), (7, ""), (6, ""), (99, "")])
def test_the_name_is_that_of_the_statement(number, name):
    run = training(5).run()
    lines = tuple(msgspec.structs.replace(line, line=number) if line == LOOP else line for line in run.lines)
    assert find_kept(msgspec.structs.replace(run, lines=lines), script)[0].name == name


def test_what_is_needed_without_it_is_what_a_run_needs_that_deletes_it():
    run = training(5).run()
    steps = [row for row, act in enumerate(run.action) if act == STEP_END]
    outs = [row for row, act in enumerate(run.action) if act == ALLOC and run.size[row] == 8 * MIB]
    frees = {i: row for row, (act, i) in enumerate(zip(run.action, run.ident, strict=True)) if act == FREE}
    every = {row: frees.get(run.ident[row], len(run)) for row, act in enumerate(run.action) if act == ALLOC}
    run = msgspec.structs.replace(
        used(run, every | dict(zip(outs, steps, strict=True))), settings="expandable_segments:True"
    )
    deletes = msgspec.structs.replace(training(5, deletes=True).run(), settings=run.settings)
    for where in (TrialConditions(), TrialConditions(capacity=60 * MIB), TrialConditions(capacity=20 * MIB)):
        (kept_item,) = find_kept(run, script, where)
        assert kept_item.needs == fits(deletes, where).needs < fits(run, where).needs
    assert find_kept(run, script)[0].needs == -1
    assert find_kept(run, where=TrialConditions())[0].needs == -1  # no name to delete


def test_batches_may_be_on_their_way():
    """A loader that copies the next batch ahead holds two at a time, and needs both."""
    run = training(5).run()
    for change in ({"kind": "batch"}, {"kind": "unknown", "operator": "aten::_to_copy"}):
        places = tuple(
            msgspec.structs.replace(place, **change) if place.kind == "activation" else place
            for place in run.places
        )
        assert find_kept(msgspec.structs.replace(run, places=places)) == ()


def used(run: MemoryRun, at: dict[int, int]) -> MemoryRun:
    """`run` with the rows from which on allocations are unused, by row of the allocation."""
    with_uses = msgspec.structs.replace(run, used=tuple(at.get(row, row + 1 if act == ALLOC else -1)
                                                    for row, act in enumerate(run.action)))  # fmt: skip
    assert check(with_uses) == ""
    return with_uses


def test_with_known_uses_only_unused_fields_are_reported():
    run = training(5).run()
    ended = {
        ident: row for row, (act, ident) in enumerate(zip(run.action, run.ident, strict=True)) if act == FREE
    }
    every = {row: ended.get(run.ident[row], len(run)) for row, act in enumerate(run.action) if act == ALLOC}
    assert find_kept(used(run, every)) == ()  # each is used up to its end
    (kept_item,) = find_kept(used(run, {row: end for row, end in every.items() if run.size[row] != 8 * MIB}))
    assert (kept_item.sure, kept_item.saves, kept_item.steps) == (True, 16 * MIB, 5)


def peak(run: MemoryRun, without: set[int]) -> int:
    """The most that is asked for at once if these allocations end where they are unused, event by event."""
    row_of = {
        ident: row for row, (act, ident) in enumerate(zip(run.action, run.ident, strict=True)) if act == ALLOC
    }
    most = 0
    for now in range(len(run)):
        held = 0
        for ident, row in row_of.items():
            gone = any(run.action[at] == FREE and run.ident[at] == ident for at in range(now + 1))
            early = ident in without and run.used[row] <= now
            if row <= now and not gone and not early:
                held += run.size[row]
        most = max(most, held)
    return most


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_what_is_saved_is_what_a_run_without_it_would_save(data):
    recorder, size = Recorder(), 512 * 4096
    alive: list[int] = []
    for number in range(data.draw(st.integers(8, 24))):
        recorder.alloc(number, size * data.draw(st.integers(1, 5)), kind="activation",
                       stack=[data.draw(st.sampled_from([FORWARD, LOOP]))])  # fmt: skip
        alive.append(number)
        while alive and data.draw(st.booleans()):
            recorder.free(alive.pop(data.draw(st.integers(0, len(alive) - 1))))
        if number % 4 == 3:
            recorder.step()
    run = recorder.run()
    ended = {
        ident: row for row, (act, ident) in enumerate(zip(run.action, run.ident, strict=True)) if act == FREE
    }
    rows = [row for row, act in enumerate(run.action) if act == ALLOC]
    run = used(
        run, {row: data.draw(st.integers(row + 1, ended.get(run.ident[row], len(run)))) for row in rows}
    )
    for kept_item in find_kept(run):
        mine = {run.ident[row] for row in rows if run.line(run.place[row]) == kept_item.line}
        assert (kept_item.before, kept_item.after) == (peak(run, set()), peak(run, mine))
        assert kept_item.saves > 0
