"""The verdict on a run's memory: what its replay answers, what the rules find, and the other devices."""

from __future__ import annotations

import msgspec

from gapless.model import Change, Report, Verdict
from gapless.model.memory_answer import OtherDevice
from gapless.model.memory_report import MemoryReport
from gapless.model.wording import binary_size, count

_GROWS = "GAP405"
"""Memory that grows from step to step ends every run, whatever is set."""


def verdict(report: MemoryReport) -> Verdict:
    """The first lines of what replaying a run's memory says."""
    answer = report.answer
    grows = [one for one in report.findings if one.code == _GROWS]
    changes = [
        Change(what=one.change, line=one.line, place=one.place, unit="", codes=(one.code,)) for one in grows
    ]
    reasons = [f"Memory grows: {one.evidence[0]}" for one in grows]
    return msgspec.structs.replace(
        answer,
        level="act" if grows and answer.level in ("fine", "unknown") else answer.level,
        why=(*answer.why[:1], *reasons, *answer.why[1:], *map(_other, report.others)),
        do_first=(*changes, *answer.do_first),
    )


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
