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
_DEVICES = ("dev", "cuda", "gpu")
_PRIMARY = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_LONGEST = 70
_LONGEST_LINE = 100


class Code:
    """One line of Python, parsed. `source` is the text that was parsed; offsets refer to it.

    Where the line is part of a statement, brackets were added around it: of `source` only what lies between
    the bytes `begin` and `end` was written by somebody, and only that is quoted.
    """

    def __init__(self, source: str, tree: ast.Module, begin: int = 0, end: int | None = None) -> None:
        self.source = source
        self._bytes = source.encode()
        self.tree = tree
        self._begin = begin
        self._end = len(self._bytes) if end is None else end

    @property
    def statement(self) -> ast.stmt:
        """The first statement of the line."""
        return self.tree.body[0]

    def nodes(self) -> Iterator[ast.AST]:
        """Every node of the line."""
        return ast.walk(self.tree)

    def text(self, node: ast.AST) -> str:
        """The source text of `node`, empty where it is too long to quote or goes on in another line."""
        if (
            getattr(node, "col_offset", 0) < self._begin
            or (getattr(node, "end_col_offset", 0) or 0) > self._end
        ):
            return ""
        found = ast.get_source_segment(self.source, node) or ""
        return found if len(found) <= _LONGEST and "\n" not in found else ""

    def primary(self, node: ast.expr) -> str:
        """The same, in brackets unless a method can be called on it as it stands.

        >>> sum_of_two = read("(a + b).tolist()")
        >>> sum_of_two.primary(sum_of_two.only_call("tolist").func.value)
        '(a + b)'
        """
        return self._bracketed(node, _PRIMARY)

    def operand(self, node: ast.expr) -> str:
        """The same, in brackets unless it can be compared or multiplied as it stands."""
        return self._bracketed(node, (*_PRIMARY, ast.UnaryOp, ast.Constant))

    def _bracketed(self, node: ast.expr, bare: tuple[type[ast.expr], ...]) -> str:
        found = self.text(node)
        return found if not found or isinstance(node, bare) else f"({found})"

    def replace(self, *changes: tuple[ast.expr, str]) -> str:
        """The line with other texts in place of some of its parts, empty where it is too long to quote.

        What follows the statement that the last of them is in is left out, and so are comments. The parts
        must not lie within one another.
        """
        last = max(node.col_offset for node, _ in changes)
        end = next(
            one for one in self.tree.body if one is self.tree.body[-1] or last < (one.end_col_offset or 0)
        )
        first, final = min(node.col_offset for node, _ in changes), end.end_col_offset or 0
        if end.end_lineno != 1 or first < self._begin or self._begin or final > self._end:
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
        return self.primary(call.func.value) if isinstance(call.func, ast.Attribute) else ""

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


def not_blocking(call: ast.Call) -> bool:
    """Whether ``x.to(...)`` or ``x.cuda(...)`` says something of blocking, by name or by position."""
    if any(given.arg in ("non_blocking", None) for given in call.keywords):
        return True
    return any(
        isinstance(given, ast.Starred) or (isinstance(given, ast.Constant) and isinstance(given.value, bool))
        for given in call.args
    )


def is_device(node: ast.expr) -> bool:
    """Whether `node` surely is a device: ``x.to(f)`` takes a tensor as well, and goes where that is.

    >>> [is_device(ast.parse(text, mode="eval").body) for text in ("device", "'cuda:0'", "x.device", "f")]
    [True, True, True, False]
    """
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) or type(node.value) is int
    if isinstance(node, ast.Call):
        return called(node) in ("device", "current_device")
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return "device" in name.lower() or name.lower().strip("_") in _DEVICES


def is_constant(node: ast.expr) -> bool:
    """Whether `node` is written out of numbers alone, and so is the same each time."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return all(map(is_constant, node.elts))
    if isinstance(node, ast.UnaryOp):
        return is_constant(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float, complex))


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
        for candidate, begin, end in _candidates(text):
            try:
                tree = ast.parse(candidate)
            except (SyntaxError, ValueError):
                continue
            if tree.body:
                return Code(candidate, tree, len(candidate[:begin].encode()), len(candidate[:end].encode()))
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


def _candidates(text: str) -> Iterator[tuple[str, int, int]]:
    """What `text` may be parsed as, each with the positions between which somebody wrote it."""
    for form, begin, end in dict.fromkeys(((text, 0, len(text)), _balanced(text))):
        yield form, begin, end
        bare = form.rstrip(",").rstrip()
        yield bare, begin, min(end, len(bare))
        head = bare[2:] if bare.startswith("elif ") else bare
        if head.startswith(_HEADS) or head.endswith(":"):
            head = head.rstrip(":")
            yield f"{head}: pass", begin, min(end, len(head))
        for before, after in (("(", ")"), ("{", "}"), ("f(", ")")):
            yield f"{before}{form}{after}", begin + len(before), end + len(before)


def _balanced(text: str) -> tuple[str, int, int]:
    """`text` with the brackets it lacks at its start and its end, and where in that it is itself."""
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
    end = len(missing) + len(body)
    return "".join(reversed(missing)) + body + "".join(reversed(pending)), len(missing), end
