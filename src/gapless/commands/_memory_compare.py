"""``gapless compare`` of two recordings of memory: snapshots, saved runs, sessions that hold both."""

from __future__ import annotations

import os

from gapless.analyze.compare.recordings import compare_memory
from gapless.commands._memory_input import choose, read
from gapless.commands._saved import nearby
from gapless.files.kinds import kind_of
from gapless.model.comparison import Comparison
from gapless.model.memory import MemoryRun
from gapless.model.memory_comparison import MemoryComparison
from gapless.model.wording import percent


def is_memory(name: str) -> bool:
    """Whether `name` is a file of requests for memory and nothing else.

    Raises:
        UnreadableInput: it is a file that cannot be read.
    """
    return os.path.isfile(name) and kind_of(name) in ("memory", "snapshot")


def compared(before: str, after: str) -> Comparison:
    """Two recordings of memory, named by their files, side by side.

    Raises:
        UsageError: one of them holds no memory.
    """
    return compare_memory(compare(read(before), read(after), before, after))


def compare(
    before: tuple[MemoryRun, ...], after: tuple[MemoryRun, ...], was: str, now: str
) -> MemoryComparison:
    """The memory of one device in both: one that failed, else the busiest, before; and the same after."""
    from gapless.memory.compare import compare_runs
    from gapless.memory.trials import TrialConditions

    one = choose(before, None, TrialConditions())
    same = next((run for run in after if run.device == one.device), None)
    return compare_runs((was, one), (now, same or choose(after, None, TrialConditions())), nearby)


def regression(comparison: Comparison, bound: float) -> str:
    """Why it is a regression over `bound` percent: requests fail now, or more is reserved; "": it is none."""
    memory, peak = comparison.memory, comparison.length
    if memory is not None and memory.after.failures > memory.before.failures:
        return "memory requests fail that did not fail before"
    if peak.change <= 0 or (peak.percent is not None and peak.percent <= bound):
        return ""
    share = f"{percent(peak.change / peak.before)} more" if peak.before else "more"
    return f"{share} memory reserved at the peak, over the limit of {bound:g} %"
