"""``gapless compare`` of two memory recordings: snapshots, saved runs, or sessions that hold both."""

from __future__ import annotations

import os

from gapless.commands._memory_input import choose, read
from gapless.commands._user_source import read_user_source
from gapless.files.kinds import kind_of
from gapless.model.comparison import Comparison, Measure, Side
from gapless.model.memory import MemoryRun
from gapless.model.memory_comparison import MemoryComparison
from gapless.model.wording import percent


def is_memory(name: str) -> bool:
    """Whether the file `name` holds memory requests and nothing else.

    Raises:
        UnreadableInput: it cannot be read.
    """
    return os.path.isfile(name) and kind_of(name) in ("memory", "snapshot")


def compare_files(before: str, after: str) -> Comparison:
    """Compare two memory recordings, named by their files.

    Raises:
        UsageError: one of them holds no memory requests.
    """
    return compare_memory(compare(read(before), read(after), before, after))


def compare(
    before: tuple[MemoryRun, ...], after: tuple[MemoryRun, ...], was: str, now: str
) -> MemoryComparison:
    """Compare the device that failed before (otherwise the busiest) with the same device after."""
    from gapless.memory.compare import compare_runs
    from gapless.memory.trials import TrialConditions

    main_run = choose(before, None, TrialConditions())
    same = next((run for run in after if run.device == main_run.device), None)
    return compare_runs(
        (was, main_run), (now, same or choose(after, None, TrialConditions())), read_user_source
    )


def regression(comparison: Comparison, bound: float) -> str:
    """Return why this is a regression over `bound` percent (new failures or more reserved memory), or ""."""
    memory, peak = comparison.memory, comparison.length
    if memory is not None and memory.after.failures > memory.before.failures:
        return "memory requests fail that did not fail before"
    if peak.change <= 0 or (peak.percent is not None and peak.percent <= bound):
        return ""
    share = f"{percent(peak.change / peak.before)} more" if peak.before else "more"
    return f"{share} memory reserved at the peak, over the limit of {bound:g} %"


def compare_memory(comparison: MemoryComparison) -> Comparison:
    """Wrap a comparison of two memory recordings; the compared number is the peak reserved."""
    before, after = (
        Side(name=recording.name, path=recording.name, device=recording.gpu, steps=recording.steps)
        for recording in (comparison.before, comparison.after)
    )
    return Comparison(
        sentence=comparison.sentence,
        of="memory",
        per="run",
        before=before,
        after=after,
        length=Measure(
            name="reserved", before=comparison.before.reserved, after=comparison.after.reserved, unit="bytes"
        ),
        memory=comparison,
    )
