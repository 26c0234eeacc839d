"""What the verdict on a run that does not fit says of what was tried."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.phrases.fit import until_full
from gapless.analyze.phrases.speed import each_of
from gapless.analyze.verdicts.changes import MOST
from gapless.memory.nccl import cell
from gapless.model import Change, Report, Verdict
from gapless.model.attempt import Attempt
from gapless.model.estimate import Range, Throughput
from gapless.model.memory_report import Buffers
from gapless.model.wording import about, binary_size, change, count


def with_remedies(usual: Verdict, report: Report) -> Verdict:
    """`usual` with the changes that make the run fit, those first that were tried; or that none does."""
    if not report.remedies:
        return usual
    estimate = report.estimate
    before = (estimate.step, estimate.throughput) if estimate is not None else (Range(), None)
    known = [one for one in report.remedies if not one.failed]
    helping = sorted(
        (one for one in known if one.helps), key=lambda one: (not one.tried, _slower(one, *before))
    )
    if not helping:
        return msgspec.structs.replace(usual, why=(*usual.why, _none_helps(known)))
    lack = next(one.lack for one in report.memory if one.lack is not None)
    nccl = report.memory[0].nccl
    made = [_change(one, lack.needs, *before, nccl) for one in helping]
    named = {one.what for one in usual.do_first}
    todo = (*usual.do_first, *(one for one in made if one.what not in named))[:MOST]
    why = "Each change that was tried is enough by itself" if len(todo) > 1 else ""
    return msgspec.structs.replace(usual, do_first=todo, why=(*usual.why, *filter(None, [why])))


def _none_helps(known: Sequence[Attempt]) -> str:
    """That no change is enough, and which comes closest: it fits for a while, or lacks least."""
    why = f"None of {count(len(known), 'change')} alone makes it fit"
    longest = max((one for one in known if one.fits), key=lambda one: one.lasts, default=None)
    if longest is not None:
        until = until_full(longest.lasts)
        return f"{why}, since memory grows from step to step; with {longest.what} it fits {until}"
    closest = min(known, key=lambda one: one.needs - one.has, default=None)
    if closest is None:
        return why
    return f"{why}; closest: {closest.what}, {binary_size(closest.needs - closest.has)} short"


def _change(
    attempt: Attempt, needs: int, step: Range, done: Throughput | None, nccl: Buffers | None
) -> Change:
    price = _price(attempt, step, done)
    reckoned = "" if attempt.tried or attempt.what.startswith("PYTORCH") else "reckoned"
    scarce = "leaves too little for NCCL" if cell(True, attempt.left, nccl) != "yes" else ""
    told = ", ".join(filter(None, [price, reckoned, scarce]))
    return Change(
        what=f"{attempt.what} ({told})" if told else attempt.what,
        before=needs,
        after=attempt.needs,
        unit="bytes",
    )


def _price(attempt: Attempt, step: Range, done: Throughput | None) -> str:
    """``step 412 → 455 ms``; where a step does less, ``3,050 → 2,900 samples/s``; "" where unknown."""
    if not attempt.step.likely or not step.likely:
        return ""
    (each, unit), (was, _) = each_of(attempt.throughput), each_of(done)
    if each and was and each != was:
        rates = (about(was * 1e9 / step.likely), about(each * 1e9 / attempt.step.likely))
        return f"{rates[0]} → {rates[1]} {unit}/s"
    return f"step {change(step.likely, attempt.step.likely, 'ns')}"


def _slower(attempt: Attempt, step: Range, done: Throughput | None) -> float:
    """How many times as long it takes for as much; 1 where that is not known."""
    each, was = each_of(attempt.throughput)[0], each_of(done)[0]
    if not (attempt.step.likely and step.likely):
        return 1.0
    return attempt.step.likely / step.likely * (was / each if each and was else 1.0)
