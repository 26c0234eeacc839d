"""``--find batch_size:8..256``: which argument of the script is meant, and how the script is given it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gapless.errors import UsageError

_FORM = "write --find batch_size:8..256, or batch_size:8..256:8 for multiples of eight"
_ASKED = re.compile(r"(?P<name>.*\S):(?P<least>\d+)\.\.(?P<most>\d+)(?::(?P<by>\d+))?\s*")
_OPTION = re.compile(r"""["'](--?[A-Za-z][\w.-]*)["']""")
_HYDRA = re.compile(r"@hydra\.main\b")
_MOST = 1 << 40


@dataclass(frozen=True)
class Asked:
    """The values of an argument: from `least` to `most`, every `by`."""

    name: str
    least: int
    most: int
    by: int = 1


def parse(text: str) -> Asked:
    """``batch_size:8..256``, with ``:8`` behind it for every eighth.

    >>> parse("batch_size:8..256:8")
    Asked(name='batch_size', least=8, most=256, by=8)

    Raises:
        UsageError: it is nothing of that kind.
    """
    found = _ASKED.fullmatch(text)
    if found is None:
        raise UsageError(f"--find {text!r}: expected an argument and its range: {_FORM}")
    name, least, most = found["name"].strip(), int(found["least"]), int(found["most"])
    by = int(found["by"]) if found["by"] else 1
    if any(one.isspace() for one in name):
        raise UsageError(f"--find {text!r}: {name!r} is not the name of an argument: {_FORM}")
    if not least <= most <= _MOST:
        raise UsageError(f"--find {text!r}: {least}..{most} is empty: put the smaller value first")
    if by < 1:
        raise UsageError(f"--find {text!r}: the step {by} must be at least 1")
    return Asked(name, least, most, by)


def given(words: Sequence[str], name: str, value: int, source: str = "") -> list[str]:
    """The script's arguments `words` with `name` set to `value`.

    Where it stands among them, the last of it is replaced in its form (``--batch-size 8``,
    ``--batch_size=8``, ``data.batch_size=8``); else it is added as the text of the script (`source`) spells
    it, or with two hyphens. A `name` with hyphens of its own, or that ends with ``=``, is taken as it is.

    >>> given(["--epochs", "1", "--batch-size", "8"], "batch_size", 64)
    ['--epochs', '1', '--batch-size', '64']
    >>> given([], "batch_size", 64, "parser.add_argument('--batch-size', type=int)")
    ['--batch-size=64']
    """
    changed = list(words)
    wanted = _plain(name)
    for at in range(len(words) - 1, -1, -1):
        word, equals, _ = words[at].partition("=")
        if _plain(word) != wanted:
            continue
        if equals:
            changed[at] = f"{word}={value}"
            return changed
        if word.startswith("-") and at + 1 < len(words):
            changed[at + 1] = str(value)
            return changed
    return [*changed, *_added(name, value, source)]


def _added(name: str, value: int, source: str) -> list[str]:
    if name.endswith("="):
        return [f"{name}{value}"]
    if name.startswith("-"):
        return [f"{name}={value}"] if name.startswith("--") else [name, str(value)]
    spelled = [option for option in _OPTION.findall(source) if _plain(option) == _plain(name)]
    long = next((option for option in spelled if option.startswith("--")), "")
    if long:
        return [f"{long}={value}"]
    if spelled:
        return [spelled[0], str(value)]
    return [f"{name}={value}" if _HYDRA.search(source) else f"--{name}={value}"]


def _plain(word: str) -> str:
    """What is the same however an argument is spelled."""
    return word.rstrip("=").lstrip("-+").replace("-", "_")


def source_of(path: str) -> str:
    """The text of the script; "" where there is none, as for a module."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
