"""What a report says in a sentence, and what it advises."""

from __future__ import annotations

from gapless.model.memory import MemoryReport, Outcome, Remedy, Shortage
from gapless.model.source import SourceLine
from gapless.model.wording import count, duration, percent, size


def sentence(report: MemoryReport) -> str:
    """The run in a sentence, without a full stop."""
    base = report.baseline
    if base.shortage is not None:
        return _short(report, base.shortage)
    where = f" of {size(report.limit)} on the {report.gpu}" if report.gpu and report.limit >= 0 else ""
    peak = f"At most {size(base.peak_reserved)} reserved{where}, {size(base.peak_allocated)} allocated"
    if base.failure is not None:
        line = base.failure.line
        where = f", the first at {_place(line)}" if line else ""
        return f"{peak}; {count(base.failures, 'request')} failed{where}, for {size(base.failure.size)}"
    if base.retries:
        return f"{peak}; {count(base.retries, 'request')} found the GPU full and emptied the cache first"
    idle = base.peak_reserved - base.peak_allocated
    if base.peak_reserved and idle >= 0.05 * base.peak_reserved:
        seen = " in the profile" if report.origin == "profile" else ""
        peak += f": {percent(idle / base.peak_reserved)} of it never used at once{seen}"
    return peak


def _place(line: SourceLine) -> str:
    return f"{line.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line.line}"


def _short(report: MemoryReport, shortage: Shortage) -> str:
    where = f" at {_place(shortage.line)}" if shortage.line else ""
    gpu = f"on the {report.gpu}" if report.gpu else f"with {size(report.limit)}"
    text = (
        f"Out of memory {gpu}: {size(shortage.size)} more{where} do not fit beside {size(shortage.allocated)}"
    )
    text += " allocated"
    if not shortage.cached:
        return text
    if not shortage.largest:
        return f"{text}; none of the {size(shortage.cached)} cached can serve that request"
    return f"{text}; the {size(shortage.cached)} cached are in pieces of {size(shortage.largest)} at most"


def advice(report: MemoryReport) -> str:
    """What to set, with numbers; that nothing helps; "" where nothing was tried."""
    if not report.trials:
        return ""
    base = report.baseline
    if report.remedy >= 0:
        remedy = report.remedies[report.remedy]
        assert remedy.outcome is not None
        return f"Better: {remedy.title}: {gain(remedy.outcome, base)}{cost(remedy)}"
    if report.best < 0 and report.remedies:
        settings, changes = count(len(report.trials), "setting"), count(len(report.remedies), "change")
        tried = f"{settings} and {changes} of the batches"
        if base.shortage is not None:
            return f"None of {tried} makes it fit: it needs less memory"
        return f"None of {tried} is better than what the run has"
    if report.best < 0:
        tried = count(len(report.trials), "setting")
        if base.shortage is not None:
            return f"None of {tried} makes it fit: it needs less memory, not another setting"
        return f"None of {tried} is better than what the run has"
    best = report.trials[report.best]
    if best.outcome is None:
        return ""
    return f"Better with {best.settings}: {gain(best.outcome, base)}"


def cost(remedy: Remedy) -> str:
    """What its longer batches cost."""
    return f", for {percent(remedy.tokens)} more elements in the batches" if remedy.tokens >= 0.0005 else ""


def gain(outcome: Outcome, base: Outcome) -> str:
    """What `outcome` has over `base`, in words."""
    if base.shortage is not None:
        return f"then it fits, with {size(outcome.peak_reserved)} reserved"
    parts = []
    if outcome.failures != base.failures:
        parts.append(f"{outcome.failures} failed requests instead of {base.failures}")
    if outcome.retries != base.retries:
        parts.append(
            f"{outcome.retries} instead of {count(base.retries, 'retry').replace('retrys', 'retries')}"
        )
    saved = base.peak_reserved - outcome.peak_reserved
    if base.peak_reserved and abs(saved) >= 0.01 * base.peak_reserved:
        word = "less" if saved > 0 else "more"
        parts.append(f"{size(abs(saved))} ({percent(abs(saved) / base.peak_reserved)}) {word} reserved")
    time = base.price - outcome.price
    if abs(time) >= 1_000_000:
        word = "less" if time > 0 else "more"
        parts.append(f"{duration(abs(time))} {word} in calls to the driver")
    return ", ".join(parts) or "the same"
