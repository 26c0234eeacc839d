"""What the verdict on a run that does not fit says of the changes tried."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.phrases.fit import until_full
from gapless.analyze.phrases.speed import samples_or_tokens
from gapless.analyze.verdicts.changes import MAX_CHANGES
from gapless.memory.nccl import cell
from gapless.model import Change, Report, Verdict
from gapless.model.attempt import Attempt
from gapless.model.estimate import Range, StepThroughput
from gapless.model.memory_report import Buffers
from gapless.model.wording import binary_size, count, describe_change, three_figures


def with_remedies(usual: Verdict, report: Report) -> Verdict:
    """Return `usual` with the changes that make the run fit, tried ones first; or that none does."""
    if not report.remedies:
        return usual
    estimate = report.estimate
    before = (estimate.step, estimate.throughput) if estimate is not None else (Range(), None)
    tried = [attempt for attempt in report.remedies if not attempt.failed]
    helping = sorted(
        (attempt for attempt in tried if attempt.helps),
        key=lambda attempt: (not attempt.tried, _slower(attempt, *before)),
    )
    if not helping:
        return msgspec.structs.replace(usual, why=(*usual.why, _none_helps(tried)))
    lack = next(memory.lack for memory in report.memory if memory.lack is not None)
    nccl = report.memory[0].nccl
    additions = [_change(attempt, lack.needs, *before, nccl) for attempt in helping]
    named = {change.what for change in usual.do_first}
    todo = (*usual.do_first, *(change for change in additions if change.what not in named))[:MAX_CHANGES]
    why = "Each change that was tried is enough by itself" if len(todo) > 1 else ""
    return msgspec.structs.replace(usual, do_first=todo, why=(*usual.why, *filter(None, [why])))


def _none_helps(attempts: Sequence[Attempt]) -> str:
    """Say that no change is enough, and which comes closest: it fits for a while, or lacks least."""
    why = f"None of {count(len(attempts), 'change')} alone makes it fit"
    longest = max(
        (attempt for attempt in attempts if attempt.fits), key=lambda attempt: attempt.lasts, default=None
    )
    if longest is not None:
        until = until_full(longest.lasts)
        return f"{why}, since memory grows from step to step; with {longest.what} it fits {until}"
    closest = min(attempts, key=lambda attempt: attempt.needs - attempt.has, default=None)
    if closest is None:
        return why
    return f"{why}; closest: {closest.what}, {binary_size(closest.needs - closest.has)} short"


def _change(
    attempt: Attempt, needs: int, step: Range, done: StepThroughput | None, nccl: Buffers | None
) -> Change:
    """Return the change of a tried remedy, with what it costs."""
    price = _price(attempt, step, done)
    reckoned = "" if attempt.tried or attempt.what.startswith("PYTORCH") else "reckoned"
    scarce = "leaves too little for NCCL" if cell(True, attempt.left, nccl) != "yes" else ""
    remarks = ", ".join(filter(None, [price, reckoned, scarce]))
    return Change(
        what=f"{attempt.what} ({remarks})" if remarks else attempt.what,
        before=needs,
        after=attempt.needs,
        unit="bytes",
    )


def _price(attempt: Attempt, step: Range, done: StepThroughput | None) -> str:
    """Return ``step 412 → 455 ms``; if the work differs ``3,050 → 2,900 samples/s``; "" if unknown."""
    if not attempt.step.likely or not step.likely:
        return ""
    (each, unit), (was, _) = samples_or_tokens(attempt.throughput), samples_or_tokens(done)
    if each and was and each != was:
        rates = (three_figures(was * 1e9 / step.likely), three_figures(each * 1e9 / attempt.step.likely))
        return f"{rates[0]} → {rates[1]} {unit}/s"
    return f"step {describe_change(step.likely, attempt.step.likely, 'ns')}"


def _slower(attempt: Attempt, step: Range, done: StepThroughput | None) -> float:
    """Return by what factor the same work takes longer; 1 if unknown."""
    each, was = samples_or_tokens(attempt.throughput)[0], samples_or_tokens(done)[0]
    if not (attempt.step.likely and step.likely):
        return 1.0
    return attempt.step.likely / step.likely * (was / each if each and was else 1.0)
