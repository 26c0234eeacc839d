"""Reading the user's line, so that a remedy can speak of its own names.

A line is one physical line: it may be the middle of a statement. What cannot be read gives None, and the
rule falls back to its general advice: wrong concrete advice is worse than general advice.
"""

from __future__ import annotations

import ast
import tokenize
import warnings
from collections.abc import Iterator
from functools import cache

_OPEN = {"(": ")", "[": "]", "{": "}"}
_CLOSE = {close: open_ for open_, close in _OPEN.items()}
_HEADS = ("if ", "while ", "for ", "with ", "async for ", "async with ", "def ", "class ")
_LONGEST = 70
_LONGEST_LINE = 100


class Code:
    """One line of Python, parsed. `source` is the text that was parsed; offsets refer to it."""

    def __init__(self, source: str, tree: ast.Module) -> None:
        self.source = source
        self._bytes = source.encode()
        self.tree = tree

    @property
    def statement(self) -> ast.stmt:
        """The first statement of the line."""
        return self.tree.body[0]

    def nodes(self) -> Iterator[ast.AST]:
        """Every node of the line."""
        return ast.walk(self.tree)

    def text(self, node: ast.AST) -> str:
        """The source text of `node`, empty where it is too long to quote."""
        found = ast.get_source_segment(self.source, node) or ""
        return found if len(found) <= _LONGEST and "\n" not in found else ""

    def replace(self, *changes: tuple[ast.expr, str]) -> str:
        """The line with other texts in place of some of its parts, empty where it is too long to quote.

        What follows the statement that the last of them is in is left out, and so are comments. The parts
        must not lie within one another.
        """
        last = max(node.col_offset for node, _ in changes)
        end = next(
            one for one in self.tree.body if one is self.tree.body[-1] or last < (one.end_col_offset or 0)
        )
        if end.end_lineno != 1:
            return ""
        changed = self._bytes[: end.end_col_offset]
        for node, new in sorted(changes, key=lambda change: -change[0].col_offset):
            changed = changed[: node.col_offset] + new.encode() + changed[node.end_col_offset :]
        found = changed.decode()
        return found if len(found) <= _LONGEST_LINE else ""

    def calls(self, *names: str) -> list[ast.Call]:
        """Calls of a function or a method with one of those last names, in order of appearance."""
        found = [node for node in self.nodes() if isinstance(node, ast.Call) and called(node) in names]
        return sorted(found, key=lambda call: (call.lineno, call.end_col_offset or 0))

    def only_call(self, *names: str) -> ast.Call | None:
        """The call of one of `names` where there is exactly one, else None."""
        found = self.calls(*names)
        return found[0] if len(found) == 1 else None

    def subject(self, call: ast.Call) -> str:
        """What a method is called on (``loss`` in ``loss.item()``), empty for a plain function."""
        return self.text(call.func.value) if isinstance(call.func, ast.Attribute) else ""

    def only_subscript(self) -> ast.Subscript | None:
        """The subscript of the line where there is exactly one, else None."""
        found = [node for node in self.nodes() if isinstance(node, ast.Subscript)]
        return found[0] if len(found) == 1 else None

    def only_selection(self) -> ast.Subscript | None:
        """The subscript that reads by something else than numbers and slices, where there is exactly one."""
        found = [
            node
            for node in self.nodes()
            if isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and isinstance(
                node.slice, (ast.Name, ast.Attribute, ast.Call, ast.Compare, ast.BinOp, ast.UnaryOp)
            )
            and not (isinstance(node.slice, ast.UnaryOp) and isinstance(node.slice.operand, ast.Constant))
        ]
        return found[0] if len(found) == 1 else None


def called(call: ast.Call) -> str:
    """The last name of what is called: ``nonzero`` for ``torch.nonzero(x)`` and for ``x.nonzero()``."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def with_option(code: Code, call: ast.Call, option: str) -> str:
    """The text of `call` with one more keyword argument, empty where it cannot be quoted."""
    whole = code.text(call)
    if not whole.endswith(")"):
        return ""
    comma = ", " if call.args or call.keywords else ""
    return f"{whole[:-1].rstrip().rstrip(',')}{comma}{option})"


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument, None where it is not given."""
    return next((given.value for given in call.keywords if given.arg == name), None)


def is_module(node: ast.AST, *names: str) -> bool:
    """Whether `node` is the bare name of a module, such as ``torch`` or ``F``."""
    return isinstance(node, ast.Name) and node.id in names


@cache
def read(code: str) -> Code | None:
    """`code`, parsed as leniently as one line allows; None where it does not read as Python."""
    text = _uncommented(code).strip()
    if not text:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # what a compiler would remark on the user's code was said when it ran
        for candidate in _candidates(text):
            try:
                tree = ast.parse(candidate)
            except (SyntaxError, ValueError):
                continue
            if tree.body:
                return Code(candidate, tree)
    return None


def _uncommented(code: str) -> str:
    """`code` without a comment at its end: advice quotes what runs."""
    try:
        for token in tokenize.generate_tokens(iter([code]).__next__):
            if token.type == tokenize.COMMENT:
                return code[: token.start[1]]
    except (tokenize.TokenError, SyntaxError, StopIteration):
        pass  # one line of a longer statement
    return code


def _candidates(text: str) -> Iterator[str]:
    for form in dict.fromkeys((text, _balanced(text))):
        if not form:
            continue
        yield form
        bare = form.rstrip(",").rstrip()
        yield bare
        if bare.startswith("elif "):
            bare = bare[2:]
        if bare.startswith(_HEADS) or bare.endswith(":"):
            yield bare.rstrip(":") + ": pass"
        yield f"({form})"
        yield f"{{{form}}}"
        yield f"f({form})"


def _balanced(text: str) -> str:
    """`text` with the brackets it lacks: closers at its end, openers at its start."""
    pending: list[str] = []
    missing: list[str] = []
    quote = ""
    for position, character in enumerate(text):
        if quote:
            if character == quote and text[position - 1] != "\\":
                quote = ""
        elif character in "\"'":
            quote = character
        elif character == "#":
            text = text[:position].rstrip()
            break
        elif character in _OPEN:
            pending.append(_OPEN[character])
        elif character in _CLOSE:
            if pending and pending[-1] == character:
                pending.pop()
            else:
                missing.append(_CLOSE[character])
    body = text.rstrip(",") if pending else text
    return "".join(reversed(missing)) + body + "".join(reversed(pending))
