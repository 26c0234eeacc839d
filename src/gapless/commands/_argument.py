"""``--find batch_size:8..256``: parse the range, and set that argument on the script's command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gapless.errors import UsageError

_FORM = "write --find batch_size:8..256, or batch_size:8..256:8 for multiples of eight"
_RANGE = re.compile(r"(?P<name>.*\S):(?P<least>\d+)\.\.(?P<most>\d+)(?::(?P<by>\d+))?\s*")
_OPTION = re.compile(r"""["'](--?[A-Za-z][\w.-]*)["']""")
_HYDRA = re.compile(r"@hydra\.main\b")
_MAX_VALUE = 1 << 40
"""Largest value to search, about 10^12; batch sizes and lengths are far below it."""


@dataclass(frozen=True)
class ArgumentRange:
    """The values to try for an argument: from `least` to `most` in steps of `by`."""

    name: str
    least: int
    most: int
    by: int = 1


def parse(text: str) -> ArgumentRange:
    """Parse ``batch_size:8..256``, or ``batch_size:8..256:8`` for multiples of eight.

    >>> parse("batch_size:8..256:8")
    ArgumentRange(name='batch_size', least=8, most=256, by=8)

    Raises:
        UsageError: `text` does not have this form.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UsageError(f"--find {text!r}: expected an argument and its range: {_FORM}")
    name, least, most = match["name"].strip(), int(match["least"]), int(match["most"])
    by = int(match["by"]) if match["by"] else 1
    if any(character.isspace() for character in name):
        raise UsageError(f"--find {text!r}: {name!r} is not the name of an argument: {_FORM}")
    if not least <= most <= _MAX_VALUE:
        raise UsageError(f"--find {text!r}: {least}..{most} is empty: put the smaller value first")
    if by < 1:
        raise UsageError(f"--find {text!r}: the step {by} must be at least 1")
    return ArgumentRange(name, least, most, by)


def with_argument(words: Sequence[str], name: str, value: int, source: str = "") -> list[str]:
    """Return the script's arguments `words` with `name` set to `value`.

    The last occurrence is replaced in its own form (``--batch-size 8``, ``--batch_size=8``,
    ``data.batch_size=8``); otherwise the argument is added as the script's text (`source`) spells it, or with
    two hyphens. A `name` that starts with hyphens or ends with ``=`` is used unchanged.

    >>> with_argument(["--epochs", "1", "--batch-size", "8"], "batch_size", 64)
    ['--epochs', '1', '--batch-size', '64']
    >>> with_argument([], "batch_size", 64, "parser.add_argument('--batch-size', type=int)")
    ['--batch-size=64']
    """
    changed = list(words)
    wanted = _normalize(name)
    for at in range(len(words) - 1, -1, -1):
        word, equals, _ = words[at].partition("=")
        if _normalize(word) != wanted:
            continue
        if equals:
            changed[at] = f"{word}={value}"
            return changed
        if word.startswith("-") and at + 1 < len(words):
            changed[at + 1] = str(value)
            return changed
    return [*changed, *_new_words(name, value, source)]


def _new_words(name: str, value: int, source: str) -> list[str]:
    if name.endswith("="):
        return [f"{name}{value}"]
    if name.startswith("-"):
        return [f"{name}={value}"] if name.startswith("--") else [name, str(value)]
    spelled = [option for option in _OPTION.findall(source) if _normalize(option) == _normalize(name)]
    long = next((option for option in spelled if option.startswith("--")), "")
    if long:
        return [f"{long}={value}"]
    if spelled:
        return [spelled[0], str(value)]
    return [f"{name}={value}" if _HYDRA.search(source) else f"--{name}={value}"]


def _normalize(word: str) -> str:
    """Return an argument's name without hyphens in front, with underscores inside."""
    return word.rstrip("=").lstrip("-+").replace("-", "_")


def read_source(path: str) -> str:
    """Return the text of the script, or "" if it cannot be read (a module, for example)."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
