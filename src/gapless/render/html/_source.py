"""Source files: lines around a place, whole files with costs in the margin, and their colours."""

from __future__ import annotations

import builtins
import io
import keyword
import os
import tokenize
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from markupsafe import Markup, escape

from gapless.files.input import source_text
from gapless.model import SourceLine
from gapless.render.html._clean import visible

AROUND = 3
"""Lines shown before and after one that waits."""
WHOLE = 600
"""Longer files are shown around what is marked in them alone, `REACH` lines before and after."""
REACH = 25
_LARGEST = 2_000_000
_WIDEST = 240
_BUILTINS = frozenset(dir(builtins))
_CLASSES = {tokenize.COMMENT: "tc", tokenize.STRING: "ts", tokenize.NUMBER: "tn"}


class Sources:
    """The files that findings point into, read where they lie at hand; `folder` is where paths begin.

    `clean` takes out of a line's text what is not for others.
    """

    def __init__(self, folder: str, clean: Callable[[str], str] = str) -> None:
        self._folder = folder
        self._clean = clean
        self.lines = cache(self._lines)
        self.painted = cache(self._painted)

    def holds(self, line: SourceLine) -> bool:
        """Whether the file is there and has at that line what the line is said to have."""
        text = self.lines(line.file)
        if not 0 < line.line <= len(text):
            return False
        return not line.code or text[line.line - 1].strip() == line.code.strip()

    def around(self, line: SourceLine) -> list[tuple[int, Markup]]:
        """Numbers and text of the lines around; the line's own recorded text where there is no more."""
        if not self.holds(line):
            return [(line.line, painted([self._clean(line.code)])[0])] if line.code else []
        text = self.painted(line.file)
        first, last = max(line.line - AROUND, 1), min(line.line + AROUND, len(text))
        return [(number, text[number - 1]) for number in range(first, last + 1)]

    def excerpt(self, file: str, marked: Iterable[int]) -> Iterator[tuple[int, Markup]]:
        """All lines, or of long files those near `marked` ones; number 0 stands for lines left out."""
        text = self.painted(file)
        near = set(range(1, len(text) + 1))
        if len(text) > WHOLE:
            near &= {n for line in marked for n in range(line - REACH, line + REACH + 1)}
        before = 0
        for number in sorted(near):
            if number != before + 1:
                yield 0, Markup("")
            yield number, text[number - 1]
            before = number
        if before != len(text):
            yield 0, Markup("")

    def _lines(self, file: str) -> list[str]:
        path = file if os.path.isabs(file) else os.path.join(self._folder, file)
        try:
            if not path.endswith(".py") or os.path.getsize(path) > _LARGEST:
                return []
            return source_text(path).split("\n")
        except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
            return []

    def _painted(self, file: str) -> list[Markup]:
        return painted([self._clean(line) for line in self.lines(file)])


def painted(lines: list[str]) -> list[Markup]:
    """Lines of Python as markup: keywords, text, numbers and comments in their own colours."""
    marks: dict[int, list[tuple[int, int, str]]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            kind = _kind(token)
            for row in range(token.start[0], token.end[0] + 1) if kind else ():
                begin = token.start[1] if row == token.start[0] else 0
                end = token.end[1] if row == token.end[0] else len(lines[row - 1])
                marks.setdefault(row - 1, []).append((begin, end, kind))
    except (tokenize.TokenError, SyntaxError, IndexError, ValueError):
        pass  # a line without those around it, or no Python: what was told apart until there stays
    return [_line(line, marks.get(row, [])) for row, line in enumerate(lines)]


def _kind(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        return "tk" if keyword.iskeyword(token.string) else "tb" if token.string in _BUILTINS else ""
    # From Python 3.12 on the parts of an f-string are tokens of their own.
    return "ts" if tokenize.tok_name[token.type].startswith("FSTRING") else _CLASSES.get(token.type, "")


def _line(line: str, marks: list[tuple[int, int, str]]) -> Markup:
    parts: list[Markup] = []
    at = 0
    for begin, end, kind in marks:
        if begin < at or begin >= _WIDEST:
            continue
        end = min(end, _WIDEST)
        parts += [_text(line[at:begin]), Markup('<i class="{}">{}</i>').format(kind, _text(line[begin:end]))]
        at = end
    parts.append(_text(line[at : max(_WIDEST, at)]))
    return Markup("").join(parts) + ("…" if len(line) > _WIDEST else "")


def _text(text: str) -> Markup:
    return escape(visible(text.encode("utf-8", "backslashreplace").decode("utf-8")))
