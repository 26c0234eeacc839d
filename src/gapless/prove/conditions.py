"""The conditions of the code that is compared: which of them were never true, or never false, in any case."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from gapless.emulation.support.stacks import library_of
from gapless.prove.subjects import reached
from gapless.torch_internals import DisableTorchFunction

_SHOWN = 3
_ASKED = "__gapless_asked__"
_CHOICES = ("where", "masked_fill", "masked_fill_")


_Codes = dict[tuple[str, int], list[tuple[CodeType, CodeType]]]


class Place(NamedTuple):
    """A condition of the source: its file, its line, its text."""

    file: str
    line: int
    text: str


class Conditions:
    """What the conditions of functions have been while these were watched; those of libraries are left alone.

    A function that is watched runs with code in which each condition is told of: those of ``if``, ``while``,
    of expressions and comprehensions, part by part, and those of `torch.where` and `masked_fill`. What only
    raises is a guard and no condition to be tested.
    """

    def __init__(self) -> None:
        self.seen: dict[Place, set[bool]] = {}
        self._watched: set[CodeType] = set()
        self._files: dict[str, _Codes] = {}

    @contextmanager
    def watched(self, target: Callable[..., Any]) -> Iterator[None]:
        """A block in which the functions that `target` reaches tell of their conditions."""
        before = []
        for function in reached(target):
            told = self._telling(function)
            if told is not None:
                before.append((function, function.__code__))
                function.__code__ = told
                # It stays: a hook that was made inside may run later, in backward.
                function.__globals__[_ASKED] = self._asked
            if not library_of(function.__code__.co_filename):
                self._watched.update((function.__code__, *_codes(function.__code__)))
        try:
            with _Choices(self):
                yield
        finally:
            for function, code in before:
                function.__code__ = code

    def untested(self) -> list[str]:
        """A sentence for each of the first few conditions that never changed, and how many more there are."""
        found = [
            f"untested: `{place.text}` ({os.path.basename(place.file)}:{place.line}) was "
            f"{'true' if True in values else 'false'} in every case"
            for place, values in sorted(self.seen.items())
            if len(values) == 1
        ]
        more = len(found) - _SHOWN
        if more > 0:
            found[_SHOWN:] = [f"untested: {more} more conditions had the same value in every case"]
        return found

    def _asked(self, place: tuple[str, int, str], value: Any) -> bool:
        truth = bool(value)
        self.seen.setdefault(Place(*place), set()).add(truth)
        return truth

    def chose(self, condition: torch.Tensor) -> None:
        """A choice was made on the device, by a condition for each element."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in self._watched:
            frame = frame.f_back
        if frame is None:
            return
        file, line = frame.f_code.co_filename, frame.f_lineno
        seen = self.seen.setdefault(Place(file, line, linecache.getline(file, line).strip()), set())
        seen.update(truth for truth in (True, False) if bool((condition == truth).any()))

    # -- the source --------------------------------------------------------------------------------

    def _telling(self, function: FunctionType) -> CodeType | None:
        """The code of `function` that tells of its conditions; None where there are none, or no source."""
        code = function.__code__
        if code.co_filename not in self._files:
            self._files[code.co_filename] = self._read(code.co_filename)
        found = self._files[code.co_filename].get((code.co_name, code.co_firstlineno), ())
        # Equal, or the source is another by now. Several of a line may begin at the same place.
        return next((told for plain, told in found if plain == code), None)

    def _read(self, file: str) -> _Codes:
        """The functions of `file` by name and line: as they are, and telling of their conditions."""
        source = "".join(linecache.getlines(file))
        found: _Codes = {}
        if library_of(file) or not source:
            return found
        try:
            plain = compile(source, file, "exec", dont_inherit=True)
            tree = ast.fix_missing_locations(_Telling(file).visit(ast.parse(source)))
            told = compile(tree, file, "exec", dont_inherit=True)
        except SyntaxError:
            return found
        for one, telling in zip(_codes(plain), _codes(told), strict=True):
            assert one.co_freevars == telling.co_freevars
            if one.co_code != telling.co_code:
                found.setdefault((one.co_name, one.co_firstlineno), []).append((one, telling))
        return found


class _Telling(ast.NodeTransformer):
    """Has each condition told of, with its place."""

    def __init__(self, file: str) -> None:
        self._file = file

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if node.orelse or not isinstance(node.body[-1], ast.Raise):
            node.test = self._told(node.test)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._with_test(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return self._with_test(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs = [self._told(one) for one in node.ifs]
        return node

    def _with_test(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        node.test = self._told(node.test)
        return node  # type: ignore[no-any-return]  # a node

    def _told(self, test: ast.expr) -> ast.expr:
        """``a and not b`` asks `a` and `b`; what is written out asks nothing."""
        if isinstance(test, ast.BoolOp):
            test.values = [self._told(one) for one in test.values]
            return test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test.operand = self._told(test.operand)
            return test
        if isinstance(test, ast.Constant):
            return test
        place = ast.Constant((self._file, test.lineno, ast.unparse(test)))  # type: ignore[arg-type]  # compiles
        call = ast.Call(ast.Name(_ASKED, ast.Load()), [place, test], [])
        return ast.copy_location(call, test)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


class _Choices(TorchFunctionMode):
    """Looks at the conditions of `torch.where` and its kin."""

    def __init__(self, conditions: Conditions) -> None:
        super().__init__()
        self._conditions = conditions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _CHOICES:
            with DisableTorchFunction():
                condition = next((one for one in args[:2] if _truths(one)), None)
                if condition is not None:
                    self._conditions.chose(condition)
        return func(*args, **kwargs or {})


def _truths(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool and value.numel() > 0
