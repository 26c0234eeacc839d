"""``gapless compare`` of two recordings of memory: snapshots, saved runs, sessions that hold both."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gapless.commands._memory_input import choose, is_snapshot, read
from gapless.commands._saved import kind_of, nearby
from gapless.errors import UsageError
from gapless.model.memory import MemoryRun
from gapless.model.wording import percent
from gapless.render import Style, _memory_comparison

if TYPE_CHECKING:
    from gapless.model.memory_comparison import MemoryComparison


def is_memory(name: str) -> bool:
    """Whether `name` is a file of requests for memory and nothing else.

    Raises:
        UnreadableInput: it is a file that cannot be read.
    """
    return os.path.isfile(name) and (kind_of(name) == "memory" or is_snapshot(name))


def show(before: str, after: str, form: str, style: Style, bound: float | None) -> tuple[str, str]:
    """The comparison as text or JSON, and why it is a regression over `bound` percent ("": it is none).

    Raises:
        UsageError: a page is asked for, or one of them holds no memory.
    """
    if form == "html":
        raise UsageError(
            "recordings of memory are compared as text or json; gapless memory -f html is a page"
        )
    made = compare(read(before), read(after), before, after)
    write = _memory_comparison.as_json if form == "json" else _memory_comparison.as_text
    return write(made, style), _regression(made, bound) if bound is not None else ""


def compare(
    before: tuple[MemoryRun, ...], after: tuple[MemoryRun, ...], was: str, now: str
) -> MemoryComparison:
    """The memory of one device in both: one that failed, else the busiest, before; and the same after."""
    from gapless.memory.compare import compare_runs
    from gapless.memory.trials import Where

    one = choose(before, None, Where())
    same = next((run for run in after if run.device == one.device), None)
    return compare_runs((was, one), (now, same or choose(after, None, Where())), nearby)


def _regression(made: MemoryComparison, bound: float) -> str:
    """More reserved at the peak than `bound` allows, or requests that fail now."""
    before, after = made.before, made.after
    if after.failures > before.failures:
        return "requests for memory fail that did not before (--fail-on-regression)"
    more = after.reserved - before.reserved
    if more <= 0 or 100 * more <= bound * before.reserved:
        return ""
    share = f"{percent(more / before.reserved)} more" if before.reserved else "more"
    return f"{share} memory reserved at the peak, over the bound of {bound:g} % (--fail-on-regression)"
