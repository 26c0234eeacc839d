"""Findings in few words and with portable places: for formats that other tools read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal

from gapless.model import Change, Finding, Report, SourceLine, Verdict
from gapless.model.wording import describe_change
from gapless.render import _words as words
from gapless.render._style import Style
from gapless.rules._places import short_path

Level = Literal["warning", "note"]

_OF_THE_PROFILE = "GAP7"
"""Rules of how the profile was taken, which cost the training itself nothing."""
_MATTERS = 0.005
"""A finding that leaves the GPU idle for less than this share of the steps is a note."""


def plain(text: str) -> str:
    """`text` in one line, without what steers a terminal, and as UTF-8 can hold it."""
    return "".join(c if c.isprintable() else " " if c in "\n\r\t" else repr(c)[1:-1] for c in text)


def cut(text: str, most: int) -> str:
    """`text` as :func:`plain` gives it, of at most so many characters: names of kernels can be very long."""
    told = plain(text)
    return told if len(told) <= most else told[: most - 1] + "…"


def level(finding: Finding) -> Level:
    """``warning`` for what costs training steps, ``note`` for set-up, evaluation and what costs nothing."""
    often = finding.frequency
    if not often.in_steps or often.rare or finding.code.startswith(_OF_THE_PROFILE):
        return "note"
    loss = finding.loss
    if loss is not None and (loss.idle or loss.blocked) and loss.share < _MATTERS:
        return "note"
    return "warning"


def cost(finding: Finding, report: Report) -> str:
    """What mending it saves, as far as that is known; else ""."""
    told = words.saving(finding, report)
    return f"saves {'; '.join(told)}" if told else ""


def waits(finding: Finding) -> str:
    """What waits, in words; "" where nothing does."""
    if finding.operators and any(site.mechanism != "none" for site in finding.sites):
        return words.operators(finding)
    return ""


def message(finding: Finding, report: Report) -> str:
    """The finding in sentences: what happens how often, what it costs, what to write instead."""
    parts = []
    told = waits(finding)
    if told:
        told = f"the CPU waits for the GPU in {told}"
        parts.append(f"in backward of this line {told}" if finding.backward else told)
    parts += [words.weight(finding, report), *finding.evidence, cost(finding, report)]
    instead = plain(finding.remedy)
    text = "; ".join(plain(part) for part in dict.fromkeys(parts) if part)
    return f"{text[:1].upper()}{text[1:]}. Instead: {instead}." if text else f"{instead}."


def remarks(report: Report) -> list[str]:
    """What was not checked, and the notes."""
    unseen = report.verdict.not_seen
    return [portable(line) for line in (*unseen, *report.notes)]


def verdict(report: Report, style: Style) -> list[str]:
    """The first lines, a sentence each: the verdict, why, and what to do first."""
    one = report.verdict
    sure = f" ({one.confidence})" if one.confidence else ""
    told = [f"{one.headline}{sure}", *(f"{reason}." for reason in one.reasons)]
    for number, each in enumerate(one.do_first, 1):
        where, brought = changed(each, style), effect(each)
        told.append(
            f"{number}. {each.what}{f' at {where}' if where else ''}{f': {brought}' if brought else ''}"
        )
    return [portable(line) for line in told]


def changed(each: Change, style: Style) -> str:
    """Where a change is to be made: ``train.py:60–62``, ``train.py:3, 9``; "" where no line is known."""
    if each.line is None:
        return each.place
    return f"{shown_path(each.line, style)}:{numbers(each.lines or (each.line.line,))}"


def numbers(lines: Sequence[int]) -> str:
    """``60–62``, ``3, 9``, ``3, 9 … 40``."""
    if len(lines) > 2 and lines[-1] - lines[0] == len(lines) - 1:
        return f"{lines[0]}–{lines[-1]}"
    if len(lines) > 3:
        return f"{', '.join(map(str, lines[:2]))} … {lines[-1]}"
    return ", ".join(map(str, lines))


def effect(each: Change, bound: bool = True) -> str:
    """``8.8 → 1.9 ms``; ``at best`` where the saving is an upper limit and `bound` asks to say so."""
    return describe_change(each.before, each.after, each.unit, bound and each.bound)


def effects(verdict: Verdict) -> tuple[str, list[str]]:
    """What the numbers of the changes are of, and what each brings; what all of them are is said once."""
    told = [each.bound for each in verdict.do_first if effect(each)]
    once = bool(told) and all(told)
    of = ", ".join(filter(None, (verdict.per, "at best" if once else "")))
    return of, [effect(each, not once) for each in verdict.do_first]


def portable(text: str) -> str:
    """`text` in one line, without the user's home folder in it."""
    home = os.path.join(os.path.expanduser("~"), "")
    return plain(text.replace(home, "~/") if len(home) > 2 else text)


def shown_path(line: SourceLine, style: Style) -> str:
    """A path that says nothing of the machine: from the repository's root, a package's name, or a bare name.

    With forward slashes on every platform.
    """
    file = _within(line.file, style.folder)
    if file:
        return file
    if line.library:
        return short_path(line).rpartition(":")[0]
    name = line.file.replace("\\", "/")
    return name if not _is_absolute(line.file) else PurePosixPath(name).name


def in_repository(line: SourceLine | None, style: Style) -> bool:
    """Whether `line` is the user's own and lies where a viewer of the repository finds it."""
    return line is not None and line.is_user and bool(_within(line.file, style.folder))


def where(finding: Finding, style: Style) -> str:
    """The lines that it is about, ``train.py:60–62``, or what else is known of the place."""
    files: dict[str, list[int]] = {}
    for line in finding.lines:
        files.setdefault(shown_path(line, style), []).append(line.line)
    told = (f"{file}:{numbers(sorted(found))}" for file, found in files.items())
    return ", ".join(told) or finding.place or "the whole run"


def subject(report: Report, style: Style) -> str:
    """What was looked at: the script or the trace, as a path of the repository where it is in it."""
    name = report.script[0] if report.script else ""
    if name == "-m":
        return report.script[1] if len(report.script) > 1 else ""
    return shown_path(SourceLine(name, 0), style) if name else ""


def run(report: Report, style: Style) -> str:
    """The file that was reported, or the script: what tells several reports apart."""
    file = report.profile.path if report.profile is not None else report.path
    return shown_path(SourceLine(file, 0), style) if file else subject(report, style)


def reached(finding: Finding) -> Iterator[SourceLine]:
    """The finding's line and the library's frames below it, as they were called."""
    if finding.line is not None:
        yield finding.line
    yield from reversed(finding.library_stack)


@cache
def repository(folder: str) -> str:
    """The root of the working tree that `folder` lies in, or `folder` itself."""
    if not folder:
        return ""
    start = Path(folder)
    for candidate in (start, *start.parents):
        if (candidate / ".git").exists():
            return str(candidate)
    return folder


def _within(file: str, folder: str) -> str:
    """`file` from the root of the repository that `folder` lies in; "" where it is outside."""
    if file.startswith("<") or not file:
        return ""  # a cell, a string: no file
    slashed = file.replace("\\", "/")
    if not folder:
        return "" if _is_absolute(file) or ".." in PurePosixPath(slashed).parts else slashed
    root = repository(folder)
    path = os.path.normpath(file if _is_absolute(file) else os.path.join(folder, slashed))
    for base in dict.fromkeys((root, os.path.realpath(root))):
        relative = _relative(path, base)
        if relative:
            return relative
    return ""


def _relative(path: str, base: str) -> str:
    try:
        return PurePosixPath(Path(path).relative_to(base).as_posix()).as_posix().replace("\\", "/")
    except ValueError:
        return ""


def _is_absolute(file: str) -> bool:
    return os.path.isabs(file) or file[1:3] in (":\\", ":/") or file.startswith("\\\\")
