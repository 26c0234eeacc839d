"""`ReadValue`: the value that a site reads, in the words of the user's line."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from gapless.model import Site, Use
from gapless.model.use import UseKind
from gapless.rules._code import Code, called_name, parse_line

READERS = ("item", "tolist", "cpu", "numpy", "float", "int", "bool")
"""Calls whose result is the value that they read."""
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or")
"""Methods and functions whose results are true or false."""
COUNTERS = (
    "correct",
    "hits",
    "count",
    "counts",
    "num_correct",
    "n_correct",
    "num_tokens",
    "n_tokens",
    "tokens",
)
"""Names of what is counted, in whole numbers."""


class ReadValue(NamedTuple):
    """A read: its site, its line, the text of the tensor that is read, and all kinds of its uses."""

    site: Site
    code: Code | None
    value: str
    kinds: frozenset[UseKind]

    @classmethod
    def at(cls, site: Site, code: Code | None) -> ReadValue:
        """Return the read of `site`, in the line `code`."""
        return cls(site, code, read_value(site), frozenset(use.kind for use in site.uses))

    @property
    def tensor(self) -> str:
        """The text of the tensor without its graph."""
        bare = self.value or "value"
        return bare if bare.endswith(".detach()") else f"{bracket(bare)}.detach()"

    def looked_at(self, use: Use) -> str:
        """Return the text of what `use` looks at: a sum that the value is added to, or the tensor itself."""
        for sum_use in self.site.uses:
            target = summed_in(sum_use.text) if sum_use.kind == "accumulator" else ""
            if target and re.search(rf"(?<![\w.]){re.escape(target)}(?!\w)", use.text):
                return target
        return self.tensor

    @property
    def targets(self) -> tuple[str, ...]:
        """What the line of the read assigns to."""
        statement = self.code.statement if self.code is not None else None
        return tuple(map(ast.unparse, statement.targets)) if isinstance(statement, ast.Assign) else ()

    def kept(self, use: Use) -> str:
        """Return the text of the tensor as something to keep: a copy if it may change in place later."""
        line = parse_line(self.value) if self.value else None
        node = expression_of(line)
        copied = use.changes or (
            line is not None and node is not None and line.kept(node).endswith(".clone()")
        )
        return f"{self.tensor}.clone()" if copied else self.tensor

    def replace_in(self, text: str, tensor: str) -> str:
        """Return the statement `text` with `tensor` in place of this read; "" if it cannot be quoted."""
        if "…" in text or (code := parse_line(text)) is None:
            return ""
        reads = [call for call in code.calls(*READERS) if code.text(call) == self.site.expression]
        return code.replace((reads[0], tensor)) if len(reads) == 1 else ""

    def place(self, use: Use) -> str:
        """Return `` (line 12)`` of `use`, with its file if that is another; "" for the line of the read."""
        if use.file:
            return f" ({use.file.replace(chr(92), '/').rpartition('/')[2]}:{use.line})"
        line = self.site.line
        return f" (line {use.line})" if line is not None and use.line != line.line else ""

    def name(self, use: Use) -> str:
        """Return the code of `use` with its line."""
        return f"`{use.text}`{self.place(use)}"


def summed_in(text: str) -> str:
    """Return what the statement `text` adds to; "" if it is no assignment."""
    code = parse_line(text)
    if code is None or not isinstance(code.statement, (ast.AugAssign, ast.Assign)):
        return ""
    statement = code.statement
    return code.text(statement.target if isinstance(statement, ast.AugAssign) else statement.targets[0])


def read_value(site: Site) -> str:
    """Return the text of the tensor that the site reads; "" if it is unknown or was cut."""
    code = parse_whole(site.expression)
    node = expression_of(code)
    if code is None or node is None:
        return ""
    if isinstance(node, ast.Call) and called_name(node) in READERS:
        if isinstance(node.func, ast.Attribute):
            return code.primary(node.func.value)
        return code.primary(node.args[0]) if len(node.args) == 1 else ""
    return code.text(node)


def parse_whole(text: str) -> Code | None:
    """Return the parsed `text`; None if it was cut, or is no Python."""
    return parse_line(text) if text and "…" not in text else None


def expression_of(code: Code | None) -> ast.expr | None:
    """Return the expression that the line is; None if it is another statement."""
    return code.statement.value if code is not None and isinstance(code.statement, ast.Expr) else None


def bracket(text: str) -> str:
    """Return `text`, in brackets if a method call on it needs them."""
    code = parse_line(text)
    node = expression_of(code)
    return (code.primary(node) if code is not None and node is not None else "") or text


def is_count(text: str) -> bool:
    """Whether the text says that the tensor is a number of hits: a whole number, and exact as such.

    >>> is_count("(guess == y).sum()"), is_count("(guess == y).half().sum()"), is_count("x[y > 0].sum()")
    (True, False, False)
    """
    node = expression_of(parse_whole(text))
    while (
        isinstance(node, ast.Call) and called_name(node) == "detach" and isinstance(node.func, ast.Attribute)
    ):
        node = node.func.value
    if isinstance(node, ast.Name):
        return node.id in COUNTERS
    if not isinstance(node, ast.Call):
        return False
    name = called_name(node)
    if name == "sum" and isinstance(node.func, ast.Attribute) and not node.args and not node.keywords:
        return _is_answer(node.func.value)
    return name in ("count_nonzero", "argmax", "argmin", "long", "int")


def _is_answer(node: ast.expr) -> bool:
    """Whether `node` is the answer of comparisons."""
    if isinstance(node, ast.BinOp):
        logical = isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
        return logical and _is_answer(node.left) and _is_answer(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_answer(node.operand)
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and called_name(node) in _COMPARISONS)
