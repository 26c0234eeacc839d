"""The verdict on a search: the largest value of an argument that fits."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gapless.analyze.phrases.fit import memory_of
from gapless.analyze.verdicts.memory_verdict import first_to_fill, growing
from gapless.model import Report, Verdict
from gapless.model.attempt import Search
from gapless.model.memory_report import MemoryReport
from gapless.model.wording import binary_size, count


def with_search(report: Report, usual: Verdict) -> Verdict:
    """`usual`, the verdict of the run with the value that was found, behind what was found."""
    made = report.search
    if made is None:
        return usual
    gpu = report.environment.device.removeprefix("NVIDIA ")
    best = made.best
    if best is None:
        return msgspec.structs.replace(
            usual, sentence=f"Not even {made.argument}={made.least} fits: {usual.sentence}"
        )
    which = (
        f"the end of your range: every value tried up to {made.most} fits"
        if made.found + made.by > made.most and not made.holes
        else f"of {made.least} to {made.most}{f' by {made.by}' if made.by > 1 else ''}"
    )
    sentence = f"{made.argument}={made.found} is the largest that fits the {gpu}, {which}"
    leaking = first_to_fill(report.memory)
    if leaking is not None and not leaking.finished:
        sentence = growing(leaking, f"{made.argument}={made.found} is the largest {_ran(leaking)} the {gpu}")
    return msgspec.structs.replace(
        usual,
        sentence=sentence,
        why=(f"{memory_of(best)} reserved at most", *_why(made), usual.sentence, *usual.why),
    )


def _ran(report: MemoryReport) -> str:
    return f"with which {count(report.steps, 'step')} fit"


def _why(search: Search) -> Iterator[str]:
    """What the next value lacks, and what was not as expected."""
    above = [one for one in search.attempts if one.value > search.found]
    if above:
        one = above[0]
        short = (
            f"needs {memory_of(one)}: {binary_size(one.needs - one.has)} short"
            if not one.failed
            else one.failed
        )
        yield f"{search.argument}={one.value} {'does not run: ' if one.failed else ''}{short}"
    if search.holes:
        values = ", ".join(map(str, search.holes))
        verb = "does" if len(search.holes) == 1 else "do"
        yield f"a smaller value is not always enough: {values} {verb} not fit"
    tried = sorted(one.value for one in search.attempts)
    yield f"{count(len(tried), 'run')} of the script: {search.argument} {', '.join(map(str, tried))}"
