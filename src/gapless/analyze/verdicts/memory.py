"""The verdict on a run's memory: what its replay answers, what the rules find, and the other devices."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.model import Change, Finding, Report, Verdict
from gapless.model.memory_answer import OtherDevice
from gapless.model.memory_report import MemoryReport
from gapless.model.wording import binary_size, count

_GROWS = "GAP405"
"""Memory that grows from step to step ends every run, whatever is set."""
_OF_NO_USE = frozenset(("GAP409", "GAP410"))
"""Graphs that no backward pass uses, and copies of a checkpoint."""
_FINE = ("Nothing worth fixing: ", "Not enough was seen to tell: ")
"""How a sentence begins that is not true of a run whose memory grows."""


def verdict(report: MemoryReport) -> Verdict:
    """The first lines of what replaying a run's memory says."""
    answer = report.answer
    grows = growth(report)
    changes = of_growth(report)
    reasons = [f"Memory grows: {one.evidence[0]}" for one in grows]
    return msgspec.structs.replace(
        answer,
        sentence=growing(report, answer.sentence) if report.lack is None else answer.sentence,
        level="act" if grows and answer.level in ("fine", "unknown") else answer.level,
        why=(*answer.why[:1], *reasons, *answer.why[1:], *map(_other, report.others)),
        do_first=(*changes, *answer.do_first),
    )


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
    left = report.lasts
    after = f" and fills the GPU after {left:,} more" if left >= 0 else ""
    rest = next((sentence.removeprefix(one) for one in _FINE if sentence.startswith(one)), sentence)
    lower = rest[:1].lower() + rest[1:] if rest[1:2].islower() else rest
    return f"Memory grows by {binary_size(report.grows_by)} in every step{after}; {lower}".removesuffix("; ")


def lighter(reports: Sequence[MemoryReport]) -> tuple[Change, ...]:
    """What lowers the peak of a run that fits, on the device where that is highest: memory of no use."""
    highest = max(reports, key=lambda one: one.baseline.peak_reserved, default=None)
    found = highest.answer.do_first if highest is not None and highest.lack is None else ()
    return tuple(one for one in found if set(one.codes) & _OF_NO_USE)


def lowered(todo: Sequence[Change], sentence: str) -> str:
    """`sentence`, with what the first of the changes that lower the peak saves."""
    if not todo:
        return sentence
    rest = next((sentence.removeprefix(one) for one in _FINE if sentence.startswith(one)), sentence)
    before, after = binary_size(todo[0].before), binary_size(todo[0].after)
    rest = rest[:1].upper() + rest[1:]
    return f"{rest}; {todo[0].what} lowers the memory's peak from {before} to {after}"


def first_to_fill(reports: Sequence[MemoryReport]) -> MemoryReport | None:
    """The device on which memory grows that is full first; None where it grows on none."""
    found = [one for one in reports if growth(one) and one.lack is None]
    return min(found, key=lambda one: (one.lasts < 0, one.lasts, -one.grows_by), default=None)


def fits(report: Report) -> tuple[str, ...]:
    """That the memory of each device of a run fits, with what it is for."""
    if not report.memory:
        return ()
    from gapless.memory.parts import room  # loaded when memory was recorded

    told = [(one.device, room(one)) for one in report.memory]
    several = len(told) > 1
    return tuple(f"Memory{f' of GPU {device}' if several else ''}: {text}" for device, text in told if text)


def _other(one: OtherDevice) -> str:
    """Another device of the same file, in a line."""
    failed = f"{count(one.failures, 'request')} failed" if one.failures else "no request failed"
    reserved = binary_size(one.peak_reserved)
    return f"GPU {one.device}: at most {reserved} reserved, {failed} (--device {one.device})"
