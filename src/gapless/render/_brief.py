"""Findings in few words and with portable places: for formats that other tools read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal

from gapless.model import Finding, Report, SourceLine
from gapless.model.wording import duration, percent
from gapless.render import _words as words
from gapless.render._style import Style
from gapless.rules._places import short_path

Level = Literal["warning", "note"]

_RECURRING = ("every-step", "some-steps", "no-steps")
_OF_THE_PROFILE = "GAP7"
"""Rules of how the profile was taken, which cost the training itself nothing."""
_MATTERS = 0.005
"""A finding that leaves the GPU idle for less than this share of the steps is a note."""


def plain(text: str) -> str:
    """`text` in one line, without what steers a terminal, and as UTF-8 can hold it."""
    return "".join(c if c.isprintable() else " " if c in "\n\r\t" else repr(c)[1:-1] for c in text)


def level(one: Finding) -> Level:
    """``warning`` for what costs training steps, ``note`` for set-up, evaluation and what costs nothing."""
    if one.frequency.when not in _RECURRING or one.code.startswith(_OF_THE_PROFILE):
        return "note"
    loss = one.loss
    if loss is not None and (loss.idle or loss.blocked) and loss.share < _MATTERS:
        return "note"
    return "warning"


def often(one: Finding, report: Report) -> str:
    """How often it happens, or in a profile what the GPU loses to it."""
    loss = one.loss
    if loss is None:
        return words.often(one.frequency, report.steps.steady)
    if not (loss.idle or loss.blocked):
        return ""
    if loss.share < 0.0005:
        return "GPU idles under 0.1 %"
    steps = report.profile.steps.count if report.profile else 1
    each = " a step" if steps > 1 else ""
    return f"GPU idles {percent(loss.share)}, {duration(loss.idle / max(steps, 1))}{each}"


def cost(one: Finding, report: Report) -> str:
    """What removing it saves, as far as that is known; else ""."""
    price = one.price
    if price is None:
        return ""
    if price.estimated:
        return words.estimated(price, report.estimate) if report.estimate is not None else ""
    prices = report.profile.prices if report.profile else None
    if not price.waits or prices is None:
        return ""
    return "saves " + "; ".join(words.price(price, 0 if prices.reasons else prices.span))


def waits(one: Finding) -> str:
    """What waits, in words; "" where nothing does."""
    if one.operators and any(site.mechanism != "none" for site in one.sites):
        return words.operators(one)
    return ""


def message(one: Finding, report: Report) -> str:
    """The finding in sentences: what happens how often, what it costs, what to write instead."""
    parts = []
    told = waits(one)
    if told:
        told = f"the host waits for the GPU in {told}"
        parts.append(f"in backward of this line {told}" if one.backward else told)
    parts += [often(one, report), *one.evidence, cost(one, report)]
    instead = plain(one.remedy)
    text = "; ".join(plain(part) for part in dict.fromkeys(parts) if part)
    return f"{text[:1].upper()}{text[1:]}. Instead: {instead}." if text else f"{instead}."


def remarks(report: Report) -> list[str]:
    """How the run ended, and the notes."""
    return [portable(line) for line in (*words.ending(report), *report.notes)]


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


def where(one: Finding, style: Style) -> str:
    """``train.py:12``, or what else is known of the place."""
    return f"{shown_path(one.line, style)}:{one.line.line}" if one.line else one.place or "the whole run"


def subject(report: Report, style: Style) -> str:
    """What was looked at: the script or the trace, as a path of the repository where it is in it."""
    name = report.script[0] if report.script else ""
    if name == "-m":
        return report.script[1] if len(report.script) > 1 else ""
    return shown_path(SourceLine(name, 0), style) if name else ""


def reached(one: Finding) -> Iterator[SourceLine]:
    """The finding's line and the library's frames below it, as they were called."""
    if one.line is not None:
        yield one.line
    yield from reversed(one.library_stack)


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
