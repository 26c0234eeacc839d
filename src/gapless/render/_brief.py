"""Findings in few words, with portable paths, for formats that other tools read."""

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
"""Prefix of rules about how the profile was taken, which cost the training nothing."""
MIN_IDLE_SHARE = 0.005
"""A finding that idles the GPU for less than this share of the steps is a note, and not listed in full."""


def plain(text: str) -> str:
    """Return `text` in one line, without terminal control characters or invalid UTF-8."""
    return "".join(c if c.isprintable() else " " if c in "\n\r\t" else repr(c)[1:-1] for c in text)


def cut(text: str, most: int) -> str:
    """Return `text` in one line of at most `most` characters; names of kernels can be very long."""
    line = plain(text)
    return line if len(line) <= most else line[: most - 1] + "…"


def level(finding: Finding) -> Level:
    """Return ``warning`` for what costs training steps, ``note`` for set-up, evaluation and trifles."""
    often = finding.frequency
    if not often.in_steps or often.rare or finding.code.startswith(_OF_THE_PROFILE):
        return "note"
    loss = finding.loss
    if loss is not None and (loss.idle or loss.blocked) and loss.share < MIN_IDLE_SHARE:
        return "note"
    return "warning"


def cost(finding: Finding, report: Report) -> str:
    """Return what fixing the finding saves, or "" if unknown."""
    savings = words.saving(finding, report)
    return f"saves {'; '.join(savings)}" if savings else ""


def waits(finding: Finding) -> str:
    """Return what waits, in words; "" if nothing does."""
    if finding.operators and any(site.mechanism != "none" for site in finding.sites):
        return words.operators(finding)
    return ""


def message(finding: Finding, report: Report) -> str:
    """Return the finding in sentences: what happens how often, what it costs, what to write instead.

    Code in lines of its own is left out.
    """
    parts = []
    waiting = waits(finding)
    if waiting:
        waiting = f"the CPU waits for the GPU in {waiting}"
        parts.append(f"in backward of this line {waiting}" if finding.backward else waiting)
    parts += [words.weight(finding, report), *finding.evidence, cost(finding, report)]
    instead = plain(finding.remedy.partition("\n")[0])
    text = "; ".join(plain(part) for part in dict.fromkeys(parts) if part)
    return f"{text[:1].upper()}{text[1:]}. Instead: {instead}." if text else f"{instead}."


def remarks(report: Report) -> list[str]:
    """Return what was not checked, and the notes."""
    unseen = report.verdict.not_seen
    return [portable(line) for line in (*unseen, *report.notes)]


def verdict(report: Report, style: Style) -> list[str]:
    """Return the first lines, a sentence each: the verdict, why, and what to do first."""
    answer = report.verdict
    sure = f" ({answer.confidence})" if answer.confidence else ""
    lines = [f"{answer.headline}{sure}", *(f"{reason}." for reason in answer.reasons)]
    for number, each in enumerate(answer.do_first, 1):
        where, brought = where_to_change(each, style), effect(each)
        lines.append(
            f"{number}. {each.what}{f' at {where}' if where else ''}{f': {brought}' if brought else ''}"
        )
    return [portable(line) for line in lines]


def where_to_change(each: Change, style: Style) -> str:
    """Return where to make a change: ``train.py:60–62``, ``train.py:3, 9``; "" if unknown."""
    if each.line is None:
        return each.place
    return f"{shown_path(each.line, style)}:{numbers(each.lines or (each.line.line,))}"


def numbers(lines: Sequence[int]) -> str:
    """Format line numbers: ``60–62``, ``3, 9``, ``3, 9 … 40``."""
    if len(lines) > 2 and lines[-1] - lines[0] == len(lines) - 1:
        return f"{lines[0]}–{lines[-1]}"
    if len(lines) > 3:
        return f"{', '.join(map(str, lines[:2]))} … {lines[-1]}"
    return ", ".join(map(str, lines))


def effect(each: Change, bound: bool = True) -> str:
    """Return ``8.8 → 1.9 ms``; with `bound`, ``at best`` if the saving is an upper limit."""
    return describe_change(each.before, each.after, each.unit, bound and each.bound)


def effects(verdict: Verdict) -> tuple[str, list[str]]:
    """Return what the changes' numbers are per, and the effect of each; "at best" is said once if it is true
    of all."""
    bounds = [each.bound for each in verdict.do_first if effect(each)]
    once = bool(bounds) and all(bounds)
    of = ", ".join(filter(None, (verdict.per, "at best" if once else "")))
    return of, [effect(each, not once) for each in verdict.do_first]


def portable(text: str) -> str:
    """Return `text` in one line, without the user's home folder."""
    home = os.path.join(os.path.expanduser("~"), "")
    return plain(text.replace(home, "~/") if len(home) > 2 else text)


def shown_path(line: SourceLine, style: Style) -> str:
    """Return a path without the machine: relative to the repository, a package's path, or a bare file name.

    It has forward slashes on every platform.
    """
    file = _within(line.file, style.folder)
    if file:
        return file
    if line.library:
        return short_path(line).rpartition(":")[0]
    name = line.file.replace("\\", "/")
    return name if not _is_absolute(line.file) else PurePosixPath(name).name


def in_repository(line: SourceLine | None, style: Style) -> bool:
    """Whether `line` is the user's own and inside the repository."""
    return line is not None and line.is_user and bool(_within(line.file, style.folder))


def where(finding: Finding, style: Style) -> str:
    """Return the finding's lines, ``train.py:60–62``, or what else is known of its place."""
    files: dict[str, list[int]] = {}
    for line in finding.lines:
        files.setdefault(shown_path(line, style), []).append(line.line)
    places = (f"{file}:{numbers(sorted(line_numbers))}" for file, line_numbers in files.items())
    return ", ".join(places) or finding.place or "the whole run"


def subject(report: Report, style: Style) -> str:
    """Return the script or the trace, as a path in the repository if possible."""
    name = report.script[0] if report.script else ""
    if name == "-m":
        return report.script[1] if len(report.script) > 1 else ""
    return shown_path(SourceLine(name, 0), style) if name else ""


def run(report: Report, style: Style) -> str:
    """Return the reported file, otherwise the script; it identifies a report among several."""
    file = report.profile.path if report.profile is not None else report.path
    return shown_path(SourceLine(file, 0), style) if file else subject(report, style)


def call_path(finding: Finding) -> Iterator[SourceLine]:
    """Yield the finding's line and the library frames below it, in calling order."""
    if finding.line is not None:
        yield finding.line
    yield from reversed(finding.library_stack)


@cache
def repository(folder: str) -> str:
    """Return the root of the git working tree that contains `folder`, or `folder` itself."""
    if not folder:
        return ""
    start = Path(folder)
    for candidate in (start, *start.parents):
        if (candidate / ".git").exists():
            return str(candidate)
    return folder


def _within(file: str, folder: str) -> str:
    """Return `file` relative to the repository of `folder`; "" if it is outside."""
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
