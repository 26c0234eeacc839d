"""The verdict on a run's memory: what its replay answers, what the rules find, and the other devices."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.verdicts.changes import MOST
from gapless.model import Change, Finding, Report, Verdict
from gapless.model.memory_answer import OtherDevice
from gapless.model.memory_report import LongestBatch, MemoryReport
from gapless.model.verdict import Level
from gapless.model.wording import binary_size, count, each_time

_MILD: tuple[Level, ...] = ("fine", "unknown")
"""What is not said of a run about whose memory a rule has something to say."""
_GROWS = "GAP405"
"""Memory that grows from step to step ends every run, whatever is set."""
_OF_NO_USE = frozenset(("GAP409", "GAP410"))
"""Graphs that no backward pass uses, and copies of a checkpoint."""
_SETTINGS = frozenset(("GAP406", "GAP408"))
"""Rules that ask for other settings of the allocator."""
_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF="
_CLAUSES = {
    "GAP406": "requests find the GPU full and empty the cache",
    "GAP404": "the GPU's memory is nearly full",
    "GAP409": "forward passes build graphs that no backward pass uses",
    "GAP410": "a loaded checkpoint stays on the GPU",
    "GAP403": "much of the reserved memory lies idle",
    "GAP401": "reserved memory is returned and requested again and again",
    "GAP402": "the driver is asked for memory in steady steps",
    "GAP408": "expandable segments would reserve less",
    "GAP407": "`garbage_collection_threshold` has no effect",
}
"""What is wrong with the memory, in a clause, the worst first."""
_FINE = ("Nothing worth fixing: ", "Not enough was seen to tell: ")
"""How a sentence begins that is not true of a run whose memory grows."""


def verdict(report: MemoryReport) -> Verdict:
    """The first lines of what replaying a run's memory says."""
    answer = report.answer
    grows = growth(report)
    changes = of_growth(report)
    reasons = [f"Memory grows: {one.evidence[0]}" for one in grows]
    sentence, why, todo = handling(report, answer.sentence), answer.why, answer.do_first
    level: Level = "act" if report.findings and answer.level in _MILD else answer.level
    if level == "failed" and not report.ends_it:
        level = "act" if todo else "fine"
    longest = too_long((report,))
    if longest is not None:
        sentence, why = not_fitting(longest, _whose(report)), (sentence, *why)
        level, todo = "failed", (shorter(longest), *todo)
    return msgspec.structs.replace(
        answer,
        sentence=growing(report, sentence) if report.lack is None else sentence,
        level=level,
        why=(*why[:1], *reasons, *why[1:], *map(_other, report.others)),
        do_first=(*changes, *todo),
    )


def handling(report: MemoryReport, sentence: str) -> str:
    """`sentence` that says what is lacking, with how the program itself goes on after that."""
    if report.handled:
        errors = count(report.handled, "out-of-memory error")
        return f"{sentence}; the run handled {errors} itself and carried on"
    if report.handler is not None:
        at = report.handler.short
        return f"{sentence}; the script handles out-of-memory errors itself ({at}) and carries on"
    return sentence


def _whose(report: MemoryReport) -> str:
    return report.gpu.removeprefix("NVIDIA ") or "GPU"


def growth(report: MemoryReport) -> list[Finding]:
    """What is said of memory that grows from step to step."""
    return [one for one in report.findings if one.code == _GROWS]


def of_growth(report: MemoryReport) -> tuple[Change, ...]:
    """What to do about it, line by line."""
    return tuple(
        Change(what=one.change, line=one.line, place=one.place, unit="", codes=(one.code,))
        for one in growth(report)
    )


def growing(report: MemoryReport, sentence: str) -> str:
    """`sentence`, with what grows first: that ends the run, however little is wrong besides."""
    if not growth(report) or not report.grows_by:
        return sentence
    when, left = each_time(report.grows_every), report.lasts
    after = f" and would fill the GPU after {left:,} more" if left >= 0 else ""
    rest = _not_fine(sentence)
    lower = rest[:1].lower() + rest[1:] if rest[1:2].islower() else rest
    grown = f"by {binary_size(report.grows_by)} {when}"
    if report.finished:
        peak = binary_size(report.baseline.peak_reserved)
        whole = f"The whole run fits, but memory grew {grown}, to {peak} of {binary_size(report.room)}"
        return f"{whole if report.room >= 0 else f'Memory grew {grown}'}; {lower}".removesuffix("; ")
    return f"Memory grows {grown}{after}; {lower}".removesuffix("; ")


def with_memory(verdict: Verdict, report: Report) -> Verdict:
    """`verdict` on a script's steps, with what its memory does that fits so far: what grows comes first, then
    an item that is too long, then what lowers the peak."""
    reports, sentence = report.memory, verdict.sentence
    lowering, longest, leaking = lighter(reports), too_long(reports), first_to_fill(reports)
    todo = (*verdict.do_first[: MOST - len(lowering)], *lowering)
    sentence = besides(reports, lowered(lowering, sentence))
    level, why = verdict.level, verdict.why
    if level in _MILD and any(one.findings for one in reports):
        level = "act"
    if longest is not None:
        level, why = "failed", (_not_fine(sentence), *why)
        sentence, todo = not_fitting(longest, report.environment.device), (shorter(longest), *todo)
    if leaking is not None:
        sentence, todo = growing(leaking, sentence), (*of_growth(leaking), *todo)
    return msgspec.structs.replace(verdict, sentence=sentence, level=level, why=why, do_first=todo[:MOST])


def lighter(reports: Sequence[MemoryReport]) -> tuple[Change, ...]:
    """What helps the memory of a run that fits, on the device where most is reserved: what is of no use, and
    a setting, where a rule asks for one."""
    highest = max(reports, key=lambda one: one.baseline.peak_reserved, default=None)
    if highest is None or highest.lack is not None:
        return ()
    setting = any(one.code in _SETTINGS for one in highest.findings)
    return tuple(
        one
        for one in highest.answer.do_first
        if set(one.codes) & _OF_NO_USE or (setting and one.what.startswith(_VARIABLE))
    )


def lowered(todo: Sequence[Change], sentence: str) -> str:
    """`sentence`, with what the first of the changes that lower the peak saves."""
    if not todo or todo[0].unit != "bytes":
        return sentence
    before, after = binary_size(todo[0].before), binary_size(todo[0].after)
    return f"{_not_fine(sentence)}; {todo[0].what} lowers the memory's peak from {before} to {after}"


def besides(reports: Sequence[MemoryReport], sentence: str) -> str:
    """`sentence`, which says more than that nothing is worth fixing where a rule has found something."""
    codes = sorted({finding.code for one in reports for finding in one.findings}, key=_order)
    if not codes or not sentence.startswith(_FINE):
        return sentence
    return f"{_not_fine(sentence)}; {_CLAUSES[codes[0]]}" if codes[0] in _CLAUSES else _not_fine(sentence)


def _order(code: str) -> int:
    return list(_CLAUSES).index(code) if code in _CLAUSES else len(_CLAUSES)


def _not_fine(sentence: str) -> str:
    rest = next((sentence.removeprefix(one) for one in _FINE if sentence.startswith(one)), sentence)
    return rest[:1].upper() + rest[1:]


def too_long(reports: Sequence[MemoryReport]) -> LongestBatch | None:
    """The longest batch that is known of, where it needs more than there is."""
    found = [one.longest for one in reports if one.longest is not None and not one.longest.fits]
    return max(found, key=lambda one: one.needs - one.has, default=None)


def not_fitting(longest: LongestBatch, gpu: str) -> str:
    """That the run does not fit, for the longest batch."""
    needs, has = binary_size(longest.needs), binary_size(longest.has)
    return (
        f"Does not fit with the longest item: {longest.length:,} long, it needs {needs}, the {gpu} has "
        f"{has}: {binary_size(longest.needs - longest.has)} short"
    )


def shorter(longest: LongestBatch) -> Change:
    """What makes the longest batch fit: `most` is about the longest that does."""
    return Change(
        what=f"cut items to {longest.most:,}, or make batches of long items smaller",
        before=longest.needs,
        after=longest.cut,
        unit="bytes",
    )


def first_to_fill(reports: Sequence[MemoryReport]) -> MemoryReport | None:
    """The device on which memory grows that is full first; None where it grows on none."""
    found = [one for one in reports if growth(one) and one.lack is None]
    return min(found, key=lambda one: (one.lasts < 0, one.lasts, -one.grows_by), default=None)


def fits(report: Report) -> tuple[str, ...]:
    """That the memory of each device of a run fits, with what it is for."""
    if not report.memory:
        return ()
    from gapless.memory.parts import describe_room  # loaded when memory was recorded

    told = [(one.device, describe_room(one)) for one in report.memory]
    several = len(told) > 1
    return tuple(f"Memory{f' of GPU {device}' if several else ''}: {text}" for device, text in told if text)


def _other(one: OtherDevice) -> str:
    """Another device of the same file, in a line."""
    failed = f"{count(one.failures, 'request')} failed" if one.failures else "no request failed"
    reserved = binary_size(one.peak_reserved)
    return f"GPU {one.device}: at most {reserved} reserved, {failed} (--device {one.device})"
