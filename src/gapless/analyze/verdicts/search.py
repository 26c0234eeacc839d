"""The verdict on a search: the largest value of an argument that fits."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gapless.analyze.phrases.fit import format_memory
from gapless.analyze.verdicts.memory_verdict import first_to_fill, with_growth_first
from gapless.model import Report, Verdict
from gapless.model.attempt import Search
from gapless.model.memory_report import MemoryReport
from gapless.model.wording import binary_size, count


def with_search(report: Report, usual: Verdict) -> Verdict:
    """Return `usual`, the verdict with the value found, preceded by what the search found."""
    search = report.search
    if search is None:
        return usual
    gpu = report.environment.device.removeprefix("NVIDIA ")
    best = search.best
    if best is None:
        return msgspec.structs.replace(
            usual, sentence=f"Not even {search.argument}={search.least} fits: {usual.sentence}"
        )
    range_note = (
        f"the end of your range: every value tried up to {search.most} fits"
        if search.found + search.by > search.most and not search.holes
        else f"of {search.least} to {search.most}{f' by {search.by}' if search.by > 1 else ''}"
    )
    sentence = f"{search.argument}={search.found} is the largest that fits the {gpu}, {range_note}"
    leaking = first_to_fill(report.memory)
    if leaking is not None and not leaking.finished:
        sentence = with_growth_first(
            leaking, f"{search.argument}={search.found} is the largest {_steps_that_fit(leaking)} the {gpu}"
        )
    return msgspec.structs.replace(
        usual,
        sentence=sentence,
        why=(f"{format_memory(best)} reserved at most", *_why(search), usual.sentence, *usual.why),
    )


def _steps_that_fit(report: MemoryReport) -> str:
    """Return words for a value that fits only for some steps."""
    return f"with which {count(report.steps, 'step')} fit"


def _why(search: Search) -> Iterator[str]:
    """Yield why the next value does not fit, and what was unexpected."""
    above = [attempt for attempt in search.attempts if attempt.value > search.found]
    if above:
        attempt = above[0]
        short = (
            f"needs {format_memory(attempt)}: {binary_size(attempt.needs - attempt.has)} short"
            if not attempt.failed
            else attempt.failed
        )
        yield f"{search.argument}={attempt.value} {'does not run: ' if attempt.failed else ''}{short}"
    if search.holes:
        values = ", ".join(map(str, search.holes))
        verb = "does" if len(search.holes) == 1 else "do"
        yield f"a smaller value is not always enough: {values} {verb} not fit"
    tried = sorted(attempt.value for attempt in search.attempts)
    yield f"{count(len(tried), 'run')} of the script: {search.argument} {', '.join(map(str, tried))}"
