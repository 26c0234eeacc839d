"""`EditableFile`: a user's file as bytes and as a tree, and edits of it that leave all else untouched."""

from __future__ import annotations

import ast
import io
import re
import tokenize

from gapless.errors import GaplessError
from gapless.model.fix import Edit
from gapless.uses.source_files import SourceFile

_BLANK_OR_COMMENT = re.compile(rb"[ \t\f]*(#.*)?\r?\n?$")


class Refused(GaplessError):
    """Why a place is not rewritten, as a sentence without a full stop."""


class OtherForm(Refused):
    """The place does not have the form that the rewrite is for; another one may fit."""


class EditableFile:
    """A file of the user's: `source` is its tree, `data` its bytes, `name` how edits name it.

    Raises:
        Refused: the bytes are not what the tree was made of.
    """

    def __init__(self, source: SourceFile, name: str, data: bytes) -> None:
        self.source, self.name, self.data = source, name, data
        self.encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0].removesuffix("-sig")
        self._lines = data.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._mark = len(b"\xef\xbb\xbf") if data.startswith(b"\xef\xbb\xbf") else 0
        self.newline = "\r\n" if b"\r\n" in data else "\n"

    # -- where a node stands -----------------------------------------------------------------------

    def _offset(self, line: int, column: int) -> int:
        """Return the offset of the byte `column` of a line, as Python counts it: of UTF-8, without a mark."""
        start = self._starts[line - 1] + (self._mark if line == 1 else 0)
        if self.encoding in ("utf-8", "ascii"):
            return start + column
        text = self.data[start : self._starts[line]].decode(self.encoding)
        return start + len(text.encode()[:column].decode().encode(self.encoding))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where the bytes of `node` begin and end."""
        return (
            self._offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self._offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def text(self, node: ast.AST) -> str:
        """Return the source of `node` as it is written."""
        start, end = self.span(node)
        return self.data[start:end].decode(self.encoding)

    def primary(self, node: ast.AST) -> str:
        """Return the source of `node` as something that ``.method()`` can follow."""
        atoms = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
        return self.text(node) if isinstance(node, atoms) else f"({self.text(node)})"

    # -- edits -------------------------------------------------------------------------------------

    def edit(self, start: int, end: int, text: str) -> Edit:
        return Edit(self.name, start, end, text)

    def replace(self, node: ast.AST, text: str) -> Edit:
        return self.edit(*self.span(node), text)

    def replace_method(self, call: ast.Call, text: str) -> Edit:
        """Return the edit that makes ``x.text`` of ``x.method(…)``; without text ``x`` is left.

        Raises:
            Refused: what stands before the method's name is no dot.
        """
        assert isinstance(call.func, ast.Attribute)
        end = self.span(call)[1]
        name = self.span(call.func)[1] - len(call.func.attr.encode(self.encoding))
        if text:
            return self.edit(name, end, text)
        before = self.data[:name].rstrip(b" \t\r\n\\")
        if not before.endswith(b"."):
            raise Refused("a comment stands within the call")
        return self.edit(len(before) - 1, end, "")

    def add_argument(self, call: ast.Call, text: str) -> Edit:
        """Return the edit that adds an argument behind the last one: commas and comments stay.

        Raises:
            Refused: a generator without parentheses is the only argument.
        """
        end = self.span(call)[1] - 1
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not values:
            return self.edit(end, end, text)
        last = max(self.span(value)[1] for value in values)
        if last > end:
            raise Refused("the only argument is a generator without parentheses")
        rest = re.sub(rb"#[^\r\n]*", lambda comment: b" " * len(comment[0]), self.data[last:end])
        last += rest.rfind(b")") + 1  # the parentheses of the argument itself
        return self.edit(last, last, f", {text}")

    def remove_keyword(self, call: ast.Call, name: str) -> Edit:
        """Return the edit that removes a keyword argument behind another argument, with its comma.

        Raises:
            Refused: it is the first argument.
        """
        keyword = next(each for each in call.keywords if each.arg == name)
        start, end = self.span(keyword)
        before = [*call.args, *(each.value for each in call.keywords)]
        ends = [self.span(each)[1] for each in before if self.span(each)[1] <= start]
        if not ends:
            raise Refused(f"`{name}` is the first argument")
        between = self.data[max(ends) : start]
        if b"#" in between:
            raise Refused("a comment stands within the call")
        closed = self.data[end : self.span(call)[1]].lstrip()
        if not closed.startswith((b")", b",")):
            raise Refused(f"`{name}` is in parentheses")
        return self.edit(max(ends) + between.rfind(b")") + 1, end, "")

    def indent(self, statement: ast.stmt) -> str:
        """Return the whitespace before `statement`.

        Raises:
            Refused: another statement stands before it on its line.
        """
        start = self._starts[statement.lineno - 1] + (self._mark if statement.lineno == 1 else 0)
        lead = self.data[start : self.span(statement)[0]].decode(self.encoding)
        if lead.strip():
            raise Refused(f"line {statement.lineno} has several statements")
        return lead

    def insert_before(self, statement: ast.stmt, text: str) -> Edit:
        """Return the edit that adds a line before `statement`, as deep as it is."""
        first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
        start = self._starts[first - 1] + (self._mark if first == 1 else 0)
        return self.edit(start, start, f"{self.indent(statement)}{text}{self.newline}")

    def insert_after(self, statement: ast.stmt, text: str) -> Edit:
        """Return the edit that adds a line behind `statement`, and behind comments of its block.

        Raises:
            Refused: another statement follows on its last line.
        """
        indent, line = self.indent(statement), statement.end_lineno or statement.lineno
        rest = self.data[self.span(statement)[1] : self._starts[line]]
        if not _BLANK_OR_COMMENT.match(rest):
            raise Refused(f"line {line} has several statements")
        if hasattr(statement, "body"):
            line += self._comments_behind(line, len(indent))
        start = self._starts[line]
        ended = not start or self.data[start - 1 : start] in (b"\n", b"\r")
        lead, trail = ("", self.newline) if ended else (self.newline, "")
        return self.edit(start, start, f"{lead}{indent}{text}{trail}")

    def _comments_behind(self, line: int, depth: int) -> int:
        """Return how many lines behind `line` are comments deeper than `depth`."""
        number = 0
        for each in self._lines[line:]:
            text = each.lstrip(b" \t")
            if not text.startswith(b"#") or len(each) - len(text) <= depth:
                break
            number += 1
        return number

    def import_line(self, text: str) -> tuple[Edit, ...]:
        """Return the edit that imports at the top of the file; none if the file has the line.

        Raises:
            Refused: the file has no imports at its top that it could follow.
        """
        wanted = ast.dump(ast.parse(text).body[0])
        last: ast.stmt | None = None
        for statement in self.source.tree.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                if ast.dump(statement) == wanted:
                    return ()
                last = statement
            elif isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                break
        if last is None:
            raise Refused("the file has no imports at its top")
        return (self.insert_after(last, text),)
