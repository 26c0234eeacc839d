"""Two runs' memory side by side: what grew is told by owner, and moved code is no change."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.memory.compare import compare_runs
from gapless.memory.recorder import Recorder
from gapless.memory.report import report
from gapless.model.memory import MemoryRun
from gapless.model.source import SourceLine

MIB = 1 << 20


def run(*request: tuple[int, str, int], file: str = "/me/model.py") -> MemoryRun:
    """Lines (number, function) that ask for so many MiB, all of which stay."""
    recorder = Recorder()
    for name, (number, function, mib) in enumerate(request):
        if mib:
            recorder.alloc(name, mib * MIB, stack=[SourceLine(file, number, function)], kind="parameter")
    return recorder.run()


def changes(before: MemoryRun, after: MemoryRun) -> list[tuple[int, int, int]]:
    comparison = compare_runs(("a", before), ("b", after))
    return [
        (owner.owner.line.line, owner.before // MIB, owner.after // MIB)
        for owner in comparison.owners
        if owner.owner.line
    ]


def test_what_grew_comes_first():
    before = run((1, "f", 40), (2, "g", 40), (3, "h", 40), (4, "gone", 8))
    after = run((1, "f", 40), (2, "g", 60), (3, "h", 30), (5, "new", 16))
    assert changes(before, after) == [(2, 40, 60), (5, 0, 16), (3, 40, 30), (4, 8, 0)]
    comparison = compare_runs(("a", before), ("b", after))
    assert comparison.sentence.startswith("18 MiB more at the peak: 128 MiB → 146 MiB allocated, 14 %")
    assert (comparison.before.allocated, comparison.after.allocated) == (128 * MIB, 146 * MIB)
    assert comparison.kinds == (("parameter", 128 * MIB, 146 * MIB),)


def test_the_same_is_said_to_be_the_same():
    recorded_run = run((1, "f", 40))
    comparison = compare_runs(("a", recorded_run), ("b", recorded_run))
    assert comparison.owners == ()
    assert comparison.sentence == "Same peak as before: 40 MiB allocated"


def test_code_that_moved_is_the_same_code():
    assert changes(run((1, "f", 40), (9, "f", 20)), run((11, "f", 40), (19, "f", 20))) == []
    assert changes(run((1, "f", 40)), run((1, "f", 40), file="/other/place/model.py")) == []
    # One line of a function became two: all of it is compared.
    assert changes(run((1, "f", 40)), run((1, "f", 20), (2, "f", 30))) == [(2, 40, 50)]


def test_requests_that_fail_now_come_first():
    comparison = compare_runs(
        ("a", run((1, "f", 40))), ("b", limited(run((1, "f", 40), (2, "f", 90)), 64 * MIB))
    )
    assert comparison.sentence.startswith("Out of memory now")
    assert (comparison.before.failures, comparison.after.failures) == (0, 1)


def limited(run_to_limit: MemoryRun, limit: int) -> MemoryRun:
    return msgspec.structs.replace(run_to_limit, limit=limit, total_memory=limit)


ASKED = st.lists(st.tuples(st.integers(1, 9), st.sampled_from("fgh"), st.integers(0, 64)), max_size=12)


@settings(deadline=None, max_examples=60)
@given(ASKED, ASKED)
def test_all_changes_make_up_the_change(before, after):
    before_run, two = run(*before), run(*after)
    comparison = compare_runs(("a", before_run), ("b", two))
    # Sizes are whole MiB, all of them far above what is left out of a run of at most a gigabyte.
    grown = sum(row.change for row in comparison.owners)
    assert grown == sum(mib for *_, mib in after) * MIB - sum(mib for *_, mib in before) * MIB
    back = compare_runs(("b", two), ("a", before_run))
    assert sorted(row.change for row in back.owners) == sorted(-row.change for row in comparison.owners)
    assert comparison.after.reserved == report(two).baseline.peak_reserved
