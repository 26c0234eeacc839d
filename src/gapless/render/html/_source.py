"""Read and highlight source files: the lines around a place, and excerpts."""

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

CONTEXT_LINES = 3
"""Lines shown before and after a finding's line, as in a diff."""
MAX_WHOLE_FILE_LINES = 600
"""Longer files are shown only around marked lines: pages must stay small to send."""
EXCERPT_CONTEXT_LINES = 25
"""Lines shown before and after a marked one in longer files: about a screen."""
_MAX_FILE_BYTES = 2_000_000
"""Larger files are generated code, and slow to highlight."""
_MAX_LINE_LENGTH = 240
"""Characters shown of a line."""
_BUILTINS = frozenset(dir(builtins))
_CLASSES = {tokenize.COMMENT: "tc", tokenize.STRING: "ts", tokenize.NUMBER: "tn"}


class Sources:
    """Reads the files of findings, if they exist; relative paths are below `folder`.

    `clean` removes private text from a line.
    """

    def __init__(self, folder: str, clean: Callable[[str], str] = str) -> None:
        self._folder = folder
        self._clean = clean
        self.lines = cache(self._lines)
        self.highlighted = cache(self._highlight_file)

    def holds(self, line: SourceLine) -> bool:
        """Whether the file exists and still has the recorded code at that line."""
        text = self.lines(line.file)
        if not 0 < line.line <= len(text):
            return False
        return not line.code or text[line.line - 1].strip() == line.code.strip()

    def around(self, line: SourceLine) -> list[tuple[int, Markup]]:
        """Return numbers and text of the lines around `line`; its recorded code if the file has changed."""
        if not self.holds(line):
            return [(line.line, highlight([self._clean(line.code)])[0])] if line.code else []
        text = self.highlighted(line.file)
        first, last = max(line.line - CONTEXT_LINES, 1), min(line.line + CONTEXT_LINES, len(text))
        return [(number, text[number - 1]) for number in range(first, last + 1)]

    def excerpt(self, file: str, marked: Iterable[int]) -> Iterator[tuple[int, Markup]]:
        """Yield number and text of all lines, or in long files of those near `marked` ones; 0 marks a gap."""
        text = self.highlighted(file)
        near = set(range(1, len(text) + 1))
        if len(text) > MAX_WHOLE_FILE_LINES:
            near &= {
                n
                for line in marked
                for n in range(line - EXCERPT_CONTEXT_LINES, line + EXCERPT_CONTEXT_LINES + 1)
            }
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
            if not path.endswith(".py") or os.path.getsize(path) > _MAX_FILE_BYTES:
                return []
            return source_text(path).split("\n")
        except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
            return []

    def _highlight_file(self, file: str) -> list[Markup]:
        return highlight([self._clean(line) for line in self.lines(file)])


def highlight(lines: list[str]) -> list[Markup]:
    """Return lines of Python as markup with coloured keywords, strings, numbers and comments."""
    marks: dict[int, list[tuple[int, int, str]]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            kind = _kind(token)
            for row in range(token.start[0], token.end[0] + 1) if kind else ():
                begin = token.start[1] if row == token.start[0] else 0
                end = token.end[1] if row == token.end[0] else len(lines[row - 1])
                marks.setdefault(row - 1, []).append((begin, end, kind))
    except (tokenize.TokenError, SyntaxError, IndexError, ValueError):
        pass  # an isolated line, or no Python: what was highlighted until there stays
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
        if begin < at or begin >= _MAX_LINE_LENGTH:
            continue
        end = min(end, _MAX_LINE_LENGTH)
        parts += [_text(line[at:begin]), Markup('<i class="{}">{}</i>').format(kind, _text(line[begin:end]))]
        at = end
    parts.append(_text(line[at : max(_MAX_LINE_LENGTH, at)]))
    return Markup("").join(parts) + ("…" if len(line) > _MAX_LINE_LENGTH else "")


def _text(text: str) -> Markup:
    return escape(visible(text.encode("utf-8", "backslashreplace").decode("utf-8")))
