"""Parse the user's line, so that a remedy can use its own names.

A line is one physical line: it may be the middle of a statement. A line that cannot be parsed gives None, and
the rule gives its general advice: wrong concrete advice is worse than general advice.
"""

from __future__ import annotations

import ast
import tokenize
import warnings
from collections.abc import Iterator
from functools import cache

_OPEN = {"(": ")", "[": "]", "{": "}"}
_CLOSE = {close: open_ for open_, close in _OPEN.items()}
_STATEMENT_STARTS = ("if ", "while ", "for ", "with ", "async for ", "async with ", "def ", "class ")
"""Starts of lines that need a body to be parsed."""
_DEVICE_NAMES = ("dev", "cuda", "gpu")
"""Names of variables that are devices."""
_PRIMARY = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
"""Expressions on which a method can be called without brackets."""
_VIEWS = ("detach", "view", "reshape", "squeeze", "unsqueeze", "flatten", "t", "transpose", "permute")
"""Methods whose results share memory with their tensor."""
_MAX_QUOTED_CHARS = 70
"""Longer expressions are not quoted: advice must stay readable."""
_MAX_LINE_CHARS = 100
"""Longer lines are not quoted."""


class Code:
    """One parsed line of Python; `source` is the text that was parsed, and offsets refer to it.

    If the line is part of a statement, brackets were added around it: only the text between the bytes `begin`
    and `end` of `source` is the user's, and only that is quoted.
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
        """Yield every node of the line."""
        return ast.walk(self.tree)

    def text(self, node: ast.AST) -> str:
        """Return the source text of `node`; "" if it is too long to quote or continues on another line."""
        begin, end = getattr(node, "col_offset", -1), getattr(node, "end_col_offset", None) or 0
        if begin < self._begin or end > self._end or getattr(node, "end_lineno", 0) != 1:
            return ""
        segment = self._bytes[begin:end].decode()
        return segment if len(segment) <= _MAX_QUOTED_CHARS else ""

    def primary(self, node: ast.expr) -> str:
        """Return the text of `node`, in brackets if a method call on it needs them.

        >>> sum_of_two = parse_line("(a + b).tolist()")
        >>> sum_of_two.primary(sum_of_two.only_call("tolist").func.value)
        '(a + b)'
        """
        return self._bracket(node, _PRIMARY)

    def operand(self, node: ast.expr) -> str:
        """Return the text of `node`, in brackets if comparing or multiplying it needs them."""
        return self._bracket(node, (*_PRIMARY, ast.UnaryOp, ast.Constant))

    def _bracket(self, node: ast.expr, bare: tuple[type[ast.expr], ...]) -> str:
        text = self.text(node)
        return text if not text or isinstance(node, bare) else f"({text})"

    def replace(self, *changes: tuple[ast.expr, str]) -> str:
        """Return the line with some parts replaced; "" if it is too long to quote.

        Anything after the statement of the last part is left out, and so are comments. The parts must not
        contain one another.
        """
        last = max(node.col_offset for node, _ in changes)
        end = next(
            statement
            for statement in self.tree.body
            if statement is self.tree.body[-1] or last < (statement.end_col_offset or 0)
        )
        first, final = min(node.col_offset for node, _ in changes), end.end_col_offset or 0
        if end.end_lineno != 1 or first < self._begin or self._begin or final > self._end:
            return ""
        changed = self._bytes[: end.end_col_offset]
        for node, new in sorted(changes, key=lambda change: -change[0].col_offset):
            changed = changed[: node.col_offset] + new.encode() + changed[node.end_col_offset :]
        line = changed.decode()
        return line if len(line) <= _MAX_LINE_CHARS else ""

    def calls(self, *names: str) -> list[ast.Call]:
        """Return calls of a function or a method with one of these last names, in order of appearance."""
        matching = [
            node for node in self.nodes() if isinstance(node, ast.Call) and called_name(node) in names
        ]
        return sorted(matching, key=lambda call: (call.lineno, call.end_col_offset or 0))

    def only_call(self, *names: str) -> ast.Call | None:
        """Return the call of one of `names` if there is exactly one, else None."""
        matching = self.calls(*names)
        return matching[0] if len(matching) == 1 else None

    def subject(self, call: ast.Call) -> str:
        """Return the text of the object of a method call (``loss`` in ``loss.item()``); "" for a plain
        function."""
        return self.primary(call.func.value) if isinstance(call.func, ast.Attribute) else ""

    def kept(self, node: ast.expr) -> str:
        """Return the text of the tensor `node` as something to keep for later, a copy if it may change.

        A copy on the CPU shows no later changes in place; an attribute or an element kept on the GPU does: a
        weight, a running mean.

        >>> line = parse_line("history.append(model.weight.detach().cpu())")
        >>> line.kept(line.only_call("cpu").func.value)
        'model.weight.detach().clone()'
        """
        base = node
        while (
            isinstance(base, ast.Call)
            and called_name(base) in _VIEWS
            and isinstance(base.func, ast.Attribute)
        ):
            base = base.func.value
        text = self.primary(node)
        return f"{text}.clone()" if text and isinstance(base, (ast.Attribute, ast.Subscript)) else text

    def only_subscript(self) -> ast.Subscript | None:
        """Return the subscript of the line if there is exactly one, else None."""
        subscripts = [node for node in self.nodes() if isinstance(node, ast.Subscript)]
        return subscripts[0] if len(subscripts) == 1 else None

    def only_selection(self) -> ast.Subscript | None:
        """Return the only subscript that reads by a computed index, not by numbers or slices; else None."""
        selections = [
            node
            for node in self.nodes()
            if isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and isinstance(
                node.slice, (ast.Name, ast.Attribute, ast.Call, ast.Compare, ast.BinOp, ast.UnaryOp)
            )
            and not (isinstance(node.slice, ast.UnaryOp) and isinstance(node.slice.operand, ast.Constant))
        ]
        return selections[0] if len(selections) == 1 else None


def not_in_place(statement: str) -> str:
    """Return ``total = total + x`` for ``total += x``, as Python adds numbers: what was kept stays as it was.

    >>> not_in_place("total += loss * 2")
    'total = total + loss * 2'
    >>> not_in_place("total += a - b")
    'total = total + (a - b)'
    """
    try:
        node = ast.parse(statement).body[0]
    except SyntaxError:  # one line of a longer statement
        return statement
    if not isinstance(node, ast.AugAssign) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return statement
    target, value = (
        ast.get_source_segment(statement, node.target),
        ast.get_source_segment(statement, node.value),
    )
    alone = isinstance(node.value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) or (
        isinstance(node.value, ast.BinOp) and isinstance(node.value.op, (ast.Mult, ast.Div))
    )
    sign = "+" if isinstance(node.op, ast.Add) else "-"
    return f"{target} = {target} {sign} {value if alone else f'({value})'}"


def called_name(call: ast.Call) -> str:
    """Return the last name of the called function: ``nonzero`` for ``torch.nonzero(x)`` and
    ``x.nonzero()``."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def add_option(code: Code, call: ast.Call, option: str) -> str:
    """Return the text of `call` with one more keyword argument; "" if it cannot be quoted."""
    whole = code.text(call)
    if not whole.endswith(")"):
        return ""
    comma = ", " if call.args or call.keywords else ""
    return f"{whole[:-1].rstrip().rstrip(',')}{comma}{option})"


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument, None if it is absent."""
    return next((argument.value for argument in call.keywords if argument.arg == name), None)


def sets_blocking(call: ast.Call) -> bool:
    """Whether ``x.to(...)`` or ``x.cuda(...)`` sets `non_blocking`, by name or by position."""
    if any(argument.arg in ("non_blocking", None) for argument in call.keywords):
        return True
    return any(
        isinstance(argument, ast.Starred)
        or (isinstance(argument, ast.Constant) and isinstance(argument.value, bool))
        for argument in call.args
    )


def is_device(node: ast.expr) -> bool:
    """Whether `node` surely is a device (``x.to(f)`` accepts a tensor as well).

    >>> [is_device(ast.parse(text, mode="eval").body) for text in ("device", "'cuda:0'", "x.device", "f")]
    [True, True, True, False]
    """
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) or type(node.value) is int
    if isinstance(node, ast.Call):
        return called_name(node) in ("device", "current_device")
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return "device" in name.lower() or name.lower().strip("_") in _DEVICE_NAMES


def is_constant(node: ast.expr) -> bool:
    """Whether `node` consists of literal numbers, so that its value never changes."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return all(map(is_constant, node.elts))
    if isinstance(node, ast.UnaryOp):
        return is_constant(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float, complex))


def is_module(node: ast.AST, *names: str) -> bool:
    """Whether `node` is the bare name of a module, such as ``torch`` or ``F``."""
    return isinstance(node, ast.Name) and node.id in names


@cache
def parse_line(code: str) -> Code | None:
    """Parse `code` as leniently as one line allows; None if it is not Python."""
    text = _without_comment(code).strip()
    if not text:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the user's code were shown when it ran
        for candidate, begin, end in _parse_candidates(text):
            try:
                tree = ast.parse(candidate)
            except (SyntaxError, ValueError):
                continue
            if tree.body:
                return Code(candidate, tree, len(candidate[:begin].encode()), len(candidate[:end].encode()))
    return None


def _without_comment(code: str) -> str:
    """Return `code` without a comment at its end: advice quotes only what runs."""
    if "#" not in code:
        return code
    try:
        for token in tokenize.generate_tokens(iter([code]).__next__):
            if token.type == tokenize.COMMENT:
                return code[: token.start[1]]
    except (tokenize.TokenError, SyntaxError, StopIteration):
        pass  # one line of a longer statement
    return code


def _parse_candidates(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield texts that `text` may be parsed as, each with the positions of the user's part."""
    for form, begin, end in dict.fromkeys(((text, 0, len(text)), _add_missing_brackets(text))):
        yield form, begin, end
        bare = form.rstrip(",").rstrip()
        yield bare, begin, min(end, len(bare))
        head = bare[2:] if bare.startswith("elif ") else bare
        if head.startswith(_STATEMENT_STARTS) or head.endswith(":"):
            head = head.rstrip(":")
            yield f"{head}: pass", begin, min(end, len(head))
        for before, after in (("(", ")"), ("{", "}"), ("f(", ")")):
            yield f"{before}{form}{after}", begin + len(before), end + len(before)


def _add_missing_brackets(text: str) -> tuple[str, int, int]:
    """Return `text` with missing brackets added at both ends, and the positions of `text` in it."""
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
