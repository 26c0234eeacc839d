"""Compare what two runs print: times, rates and paths differ from run to run, numbers of the training not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NUMBER = r"[-+]?(?:\d+(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?"
_UNIT = r"(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?)"
_LABEL = rf"(?:\s*[:=]\s*[-+.\d]|\s+{_NUMBER}(?![\d.,]|\s?(?:{_UNIT}|[hm])\b))"
"""What follows the name of the next number: ``0.5 min 0.1`` is a mean and a smallest value, not minutes."""
_AFTER_NUMBER = (
    rf"(?:{_UNIT}\b|\s(?:seconds?|minutes?|hours?)\b|\s{_UNIT}\b(?!{_LABEL}|/)|(?<=\d)m\b(?<=h\d\dm))"
)
_PER = r"(?:s|secs?|second|hr|h|hour|day)"
_PER_MINUTE = r"(?:it|iter|step|batch|batche|sample|image|img|token|tok|frame|episode)s?/min(?:ute)?"
_RATE = rf"(?:[A-Za-z_]+/{_PER}|{_PER_MINUTE})"
_TIME_EACH = rf"(?!mins?/(?!(?:epoch|step|batch|it|iter)\b)){_UNIT}(?:/| per )[A-Za-z_]+"
_DURATION = rf"(?:{_NUMBER}\s?[hm]\s?)*{_NUMBER}{_AFTER_NUMBER}"
_TIME_WORD = (
    r"(?:(?:[A-Za-z]+[_/ ])*(?:time|elapsed|duration|runtime|walltime|latency|throughput|fps|qps)|ETA)"
    r"(?:_(?:s|ms|sec|secs|seconds|total|avg|mean))*|[A-Za-z_]+_per_(?:s|sec|second|hour|day)|pid|PID"
)
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"\x1b\[[0-9;?]*[A-Za-z]", ""),  # colours
        (r"\d{4}-\d\d-\d\d(?:[T _-]\d\d[:-]\d\d[:-]\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?", "<date>"),
        (r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? [A-Z][a-z]{2} +\d+", "<date>"),
        (r"\d+ days?, (?=\d+:\d\d:\d\d)", ""),
        (r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b", "<time>"),
        (r"\b\d\d:\d\d(?=[<,\]]|\s*<)|(?<=<)(?:\d\d:\d\d|\?)", "<time>"),  # progress bars
        (rf"\s*(?<![\w.])(?:{_NUMBER}|\?)\s?{_RATE}\b", " <rate>"),
        (rf"\s*(?<![\w.])(?:{_NUMBER}|\?)\s?{_TIME_EACH}\b", " <rate>"),
        (rf"\b({_RATE}|{_TIME_EACH})([:=]?\s*){_NUMBER}", r"\1\2<rate>"),
        (
            rf"\b({_TIME_WORD})(['\"]?\)?\s*(?:[:=]|is|was|of)?\s*)(?:{_DURATION}|{_NUMBER}|<time>)",
            r"\1\2<time>",
        ),
        (rf"\s*(?<![\w.]){_DURATION}", " <time>"),
        (r"\b0x[0-9a-fA-F]{6,}\b", "<address>"),
        (r"(?<![\w.])(?:/[\w.+@~-]+)+/(?=[\w+@~-][\w.+@~-]*\.\w)", "<path>/"),  # files keep their names
        (r"(?<![\w.>])(?:/[\w.+@~-]+){2,}/?", "<path>"),
        (r"(?<![\w])[A-Za-z]:(?:\\[\w.+@~ -]+)+", "<path>"),
        (r"(?<=\.py:)\d+\b|(?<=, line )\d+\b", "<line>"),
    )
)  # fmt: skip
"""(pattern, replacement), applied in this order: what a clock, a path or the edit's own place decides."""

_WARNING = re.compile(r"^.+:\d+: \w*Warning: |^\[W\d{4} ")
_UNFINISHED_BAR = re.compile(r"(?<!\d)(?!100%)\d{1,2}%\|")
_NUMBERS = re.compile(_NUMBER + r"|\bnan\b|\binf\b")
_MAX_SHOWN = 100
"""Characters of a line that a difference shows."""


def mask(line: str) -> str:
    """Return `line` with times, rates, dates, addresses and paths replaced by their kind.

    >>> mask("epoch 3 loss 0.1234 (12.3 s, 456.7 it/s)")
    'epoch 3 loss 0.1234 ( <time>, <rate>)'
    """
    for pattern, instead in _RULES:
        line = pattern.sub(instead, line)
    return line.rstrip()


@dataclass(frozen=True)
class PrintedLine:
    """A line as printed, as compared, and the number of bytes before its end."""

    text: str
    masked: str
    end: int


def split_lines(data: bytes) -> tuple[list[PrintedLine], list[str]]:
    """Return the lines that count, and the warnings among them, a line each.

    Of a line that was overwritten, as by progress bars, the last state counts; bars short of their end are
    shown when the clock says so and do not count.
    """
    lines: list[PrintedLine] = []
    warnings: list[str] = []
    end = 0
    for raw in data.split(b"\n"):
        end += len(raw) + 1
        text = raw.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
        if _WARNING.match(text):
            warnings.append(mask(text))
        elif text.strip() and not _UNFINISHED_BAR.search(text):
            lines.append(PrintedLine(text, mask(text), end))
    return lines, warnings


@dataclass(frozen=True)
class LineDifference:
    """The first line that differs: a text is None if there is no such line; `end` is as in `PrintedLine`."""

    before: str | None
    after: str | None
    end: int
    number: int

    def describe(self, stream: str) -> str:
        """Return ``line 3 of standard output is 'b' instead of 'a'``."""
        where = f"line {self.number} of {stream}"
        if self.after is None:
            return f"{where} is not printed: {_shorten(self.before or '')!r}"
        if self.before is None:
            return f"{where} is new: {_shorten(self.after)!r}"
        return f"{where} is {_shorten(self.after)!r} instead of {_shorten(self.before)!r}"


def _shorten(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def first_difference(
    before: Sequence[PrintedLine], after: Sequence[PrintedLine], rounding: float = 0.0
) -> LineDifference | None:
    """Return the first difference of two texts; numbers may differ by the share `rounding`."""
    for number, (old, new) in enumerate(zip(before, after, strict=False), 1):
        if old.masked != new.masked and not (rounding and _are_close(old.masked, new.masked, rounding)):
            is_missing = len(after) < len(before) and _follows(after[number - 1 :], before[number:])
            if is_missing:
                return LineDifference(old.text, None, old.end, number)
            is_new = len(after) > len(before) and _follows(before[number - 1 :], after[number:])
            if is_new:
                return LineDifference(None, new.text, new.end, number)
            return LineDifference(old.text, new.text, old.end, number)
    number = min(len(before), len(after))
    if len(before) > number:
        return LineDifference(before[number].text, None, before[number].end, number + 1)
    if len(after) > number:
        return LineDifference(None, after[number].text, after[number].end, number + 1)
    return None


def _follows(lines: Sequence[PrintedLine], rest: Sequence[PrintedLine]) -> bool:
    """Whether `lines` goes on as `rest` does: a line was left out or added."""
    return not lines or (bool(rest) and lines[0].masked == rest[0].masked)


def _are_close(before: str, after: str, rounding: float) -> bool:
    """Whether two lines differ only in numbers, each by `rounding` or by one in its last digit."""
    if _NUMBERS.sub("#", before) != _NUMBERS.sub("#", after):
        return False
    pairs = zip(_NUMBERS.findall(before), _NUMBERS.findall(after), strict=True)
    return all(old == new or _is_near(old, new, rounding) for old, new in pairs)


def _is_near(old: str, new: str, rounding: float) -> bool:
    was, now = float(old.replace(",", "")), float(new.replace(",", ""))
    if "." not in old + new and "e" not in (old + new).lower():
        return was == now
    digits = len(old.lower().partition("e")[0].partition(".")[2])
    exponent = int(old.lower().partition("e")[2] or 0)
    unit = float(f"1e{exponent - digits}")
    return abs(was - now) <= max(rounding * abs(was), 1.01 * unit)
