"""The verdict on a run's memory: the replay's answer, what the rules find, and other devices."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.verdicts.changes import MAX_CHANGES
from gapless.model import Change, Finding, Report, Verdict
from gapless.model.memory_answer import OtherDevice
from gapless.model.memory_report import LongestBatch, MemoryReport
from gapless.model.verdict import Level
from gapless.model.wording import binary_size, count, each_time

_MILD_LEVELS: tuple[Level, ...] = ("fine", "unknown")
"""Levels that do not apply to a run with findings about its memory."""
_GROWTH_RULE = "GAP405"
"""The rule for memory that grows from step to step, which ends every run, whatever is set."""
_UNUSED_MEMORY_RULES = frozenset(("GAP409", "GAP410"))
"""Rules for graphs without a backward pass, and for copies of a checkpoint."""
_SETTINGS_RULES = frozenset(("GAP406", "GAP408"))
"""Rules that ask for other allocator settings."""
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
"""What is wrong with the memory, as clauses, the worst first."""
_FINE_PREFIXES = ("Nothing worth fixing: ", "Not enough was seen to tell: ")
"""Beginnings of a sentence that are wrong for a run whose memory grows."""


def verdict(report: MemoryReport) -> Verdict:
    """Return the verdict on the replayed memory of a run."""
    answer = report.answer
    grows = growth(report)
    changes = growth_changes(report)
    reasons = [f"Memory grows: {finding.evidence[0]}" for finding in grows]
    sentence, why, todo = with_handling(report, answer.sentence), answer.why, answer.do_first
    level: Level = "act" if report.findings and answer.level in _MILD_LEVELS else answer.level
    if level == "failed" and not report.ends_it:
        level = "act" if todo else "fine"
    longest = too_long_batch((report,))
    if longest is not None:
        sentence, why = misfit_sentence(longest, _gpu_name(report)), (sentence, *why)
        level, todo = "failed", (shorten_items(longest), *todo)
    return msgspec.structs.replace(
        answer,
        sentence=with_growth_first(report, sentence) if report.lack is None else sentence,
        level=level,
        why=(*why[:1], *reasons, *why[1:], *map(_describe_device, report.others)),
        do_first=(*changes, *todo),
    )


def with_handling(report: MemoryReport, sentence: str) -> str:
    """Add to `sentence`, which says what is lacking, how the program itself goes on."""
    if report.handled:
        errors = count(report.handled, "out-of-memory error")
        return f"{sentence}; the run handled {errors} itself and carried on"
    if report.handler is not None:
        at = report.handler.short
        return f"{sentence}; the script handles out-of-memory errors itself ({at}) and carries on"
    return sentence


def _gpu_name(report: MemoryReport) -> str:
    return report.gpu.removeprefix("NVIDIA ") or "GPU"


def growth(report: MemoryReport) -> list[Finding]:
    """Return the findings about memory that grows from step to step."""
    return [finding for finding in report.findings if finding.code == _GROWTH_RULE]


def growth_changes(report: MemoryReport) -> tuple[Change, ...]:
    """Return what to do about growing memory, by line."""
    return tuple(
        Change(what=finding.change, line=finding.line, place=finding.place, unit="", codes=(finding.code,))
        for finding in growth(report)
    )


def with_growth_first(report: MemoryReport, sentence: str) -> str:
    """Return `sentence` after what grows: that ends the run, however little else is wrong."""
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
    """Return `verdict` on a script's steps with what its memory does, if it fits so far.

    What grows comes first, then an item that is too long, then what lowers the peak.
    """
    reports, sentence = report.memory, verdict.sentence
    lowering, longest, leaking = lowering_changes(reports), too_long_batch(reports), first_to_fill(reports)
    todo = (*verdict.do_first[: MAX_CHANGES - len(lowering)], *lowering)
    sentence = with_worst_clause(reports, with_lower_peak(lowering, sentence))
    level, why = verdict.level, verdict.why
    if level in _MILD_LEVELS and any(memory.findings for memory in reports):
        level = "act"
    if longest is not None:
        level, why = "failed", (_not_fine(sentence), *why)
        sentence, todo = misfit_sentence(longest, report.environment.device), (shorten_items(longest), *todo)
    if leaking is not None:
        sentence, todo = with_growth_first(leaking, sentence), (*growth_changes(leaking), *todo)
    return msgspec.structs.replace(
        verdict, sentence=sentence, level=level, why=why, do_first=todo[:MAX_CHANGES]
    )


def lowering_changes(reports: Sequence[MemoryReport]) -> tuple[Change, ...]:
    """Return what lowers the memory of a run that fits, on its fullest device.

    That is unused memory, and an allocator setting if a rule asks for one.
    """
    highest = max(reports, key=lambda memory: memory.baseline.peak_reserved, default=None)
    if highest is None or highest.lack is not None:
        return ()
    setting = any(finding.code in _SETTINGS_RULES for finding in highest.findings)
    return tuple(
        change
        for change in highest.answer.do_first
        if set(change.codes) & _UNUSED_MEMORY_RULES or (setting and change.what.startswith(_VARIABLE))
    )


def with_lower_peak(todo: Sequence[Change], sentence: str) -> str:
    """Add to `sentence` what the first change that lowers the peak saves."""
    if not todo or todo[0].unit != "bytes":
        return sentence
    before, after = binary_size(todo[0].before), binary_size(todo[0].after)
    return f"{_not_fine(sentence)}; {todo[0].what} lowers the memory's peak from {before} to {after}"


def with_worst_clause(reports: Sequence[MemoryReport], sentence: str) -> str:
    """Add the worst memory finding to a `sentence` that says nothing is worth fixing."""
    codes = sorted({finding.code for memory in reports for finding in memory.findings}, key=_order)
    if not codes or not sentence.startswith(_FINE_PREFIXES):
        return sentence
    return f"{_not_fine(sentence)}; {_CLAUSES[codes[0]]}" if codes[0] in _CLAUSES else _not_fine(sentence)


def _order(code: str) -> int:
    """Return the rank of a rule's clause; lower is worse."""
    return list(_CLAUSES).index(code) if code in _CLAUSES else len(_CLAUSES)


def _not_fine(sentence: str) -> str:
    """Return `sentence` without a beginning that says nothing is wrong."""
    rest = next(
        (sentence.removeprefix(prefix) for prefix in _FINE_PREFIXES if sentence.startswith(prefix)), sentence
    )
    return rest[:1].upper() + rest[1:]


def too_long_batch(reports: Sequence[MemoryReport]) -> LongestBatch | None:
    """Return the longest batch that needs more memory than there is; None if all fit."""
    batches = [memory.longest for memory in reports if memory.longest is not None and not memory.longest.fits]
    return max(batches, key=lambda batch: batch.needs - batch.has, default=None)


def misfit_sentence(longest: LongestBatch, gpu: str) -> str:
    """Say that the run does not fit with its longest batch."""
    needs, has = binary_size(longest.needs), binary_size(longest.has)
    return (
        f"Does not fit with the longest item: {longest.length:,} long, it needs {needs}, the {gpu} has "
        f"{has}: {binary_size(longest.needs - longest.has)} short"
    )


def shorten_items(longest: LongestBatch) -> Change:
    """Return the change that makes the longest batch fit: `most` is about the longest that does."""
    return Change(
        what=f"cut items to {longest.most:,}, or make batches of long items smaller",
        before=longest.needs,
        after=longest.cut,
        unit="bytes",
    )


def first_to_fill(reports: Sequence[MemoryReport]) -> MemoryReport | None:
    """Return the device that growing memory fills first; None if it grows on none."""
    candidates = [memory for memory in reports if growth(memory) and memory.lack is None]
    return min(
        candidates, key=lambda memory: (memory.lasts < 0, memory.lasts, -memory.grows_by), default=None
    )


def fit_facts(report: Report) -> tuple[str, ...]:
    """Say for each device that the run's memory fits, and with what."""
    if not report.memory:
        return ()
    from gapless.memory.parts import describe_room  # loaded when memory was recorded

    texts = [(memory.device, describe_room(memory)) for memory in report.memory]
    several = len(texts) > 1
    return tuple(f"Memory{f' of GPU {device}' if several else ''}: {text}" for device, text in texts if text)


def _describe_device(device: OtherDevice) -> str:
    """Describe another device of the same file in a line."""
    failed = f"{count(device.failures, 'request')} failed" if device.failures else "no request failed"
    reserved = binary_size(device.peak_reserved)
    return f"GPU {device.device}: at most {reserved} reserved, {failed} (--device {device.device})"
