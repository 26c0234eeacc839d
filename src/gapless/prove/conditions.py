"""Record the conditions of the compared code, to report those that were never true or never false."""

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
from gapless.prove.subjects import reachable_functions
from gapless.torch_internals import DisableTorchFunction

_MAX_SHOWN = 3
"""Conditions named one by one; the others are counted."""
_HOOK_NAME = "__gapless_asked__"
"""Global name under which instrumented code finds the recorder."""
_CHOOSING_FUNCTIONS = ("where", "masked_fill", "masked_fill_")
"""Torch functions that choose elements by a condition."""


_Codes = dict[tuple[str, int], list[tuple[CodeType, CodeType]]]


class ConditionPlace(NamedTuple):
    """A condition in the source: its file, its line, its text."""

    file: str
    line: int
    text: str


class ConditionRecorder:
    """Records the values of conditions of the user's functions; libraries are left alone.

    A recorded function runs with instrumented code: the conditions of ``if`` and ``while``, of expressions
    and comprehensions, part by part, and those of `torch.where` and `masked_fill`. A condition that only
    guards a ``raise`` is not recorded.
    """

    def __init__(self) -> None:
        self.truths_by_place: dict[ConditionPlace, set[bool]] = {}
        self._recorded_codes: set[CodeType] = set()
        self._files: dict[str, _Codes] = {}

    @contextmanager
    def record(self, target: Callable[..., Any]) -> Iterator[None]:
        """Record the conditions of the functions that `target` reaches while the block runs."""
        before = []
        for function in reachable_functions(target):
            instrumented = self._instrumented_code(function)
            if instrumented is not None:
                before.append((function, function.__code__))
                function.__code__ = instrumented
                # Never removed: a hook created inside may run later, in backward.
                function.__globals__[_HOOK_NAME] = self._record_truth
            if not library_of(function.__code__.co_filename):
                self._recorded_codes.update((function.__code__, *_codes(function.__code__)))
        try:
            with _ChoiceRecorder(self):
                yield
        finally:
            for function, code in before:
                function.__code__ = code

    def untested_conditions(self) -> list[str]:
        """Return a sentence for each of the first conditions that never changed, and the number of the
        others."""
        sentences = [
            f"untested: `{place.text}` ({os.path.basename(place.file)}:{place.line}) was "
            f"{'true' if True in values else 'false'} in every case"
            for place, values in sorted(self.truths_by_place.items())
            if len(values) == 1
        ]
        more = len(sentences) - _MAX_SHOWN
        if more > 0:
            sentences[_MAX_SHOWN:] = [f"untested: {more} more conditions had the same value in every case"]
        return sentences

    def _record_truth(self, place: tuple[str, int, str], value: Any) -> bool:
        truth = bool(value)
        self.truths_by_place.setdefault(ConditionPlace(*place), set()).add(truth)
        return truth

    def record_choice(self, condition: torch.Tensor) -> None:
        """Record a condition over elements on the device, at the line of the innermost recorded function."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in self._recorded_codes:
            frame = frame.f_back
        if frame is None:
            return
        file, line = frame.f_code.co_filename, frame.f_lineno
        truths = self.truths_by_place.setdefault(
            ConditionPlace(file, line, linecache.getline(file, line).strip()), set()
        )
        truths.update(truth for truth in (True, False) if bool((condition == truth).any()))

    # -- the source --------------------------------------------------------------------------------

    def _instrumented_code(self, function: FunctionType) -> CodeType | None:
        """Return the instrumented code of `function`; None without conditions or source."""
        code = function.__code__
        if code.co_filename not in self._files:
            self._files[code.co_filename] = self._instrument_file(code.co_filename)
        candidates = self._files[code.co_filename].get((code.co_name, code.co_firstlineno), ())
        # Unequal where the source has changed since. Several functions may begin on one line.
        return next((instrumented for plain, instrumented in candidates if plain == code), None)

    def _instrument_file(self, file: str) -> _Codes:
        """Return pairs of plain and instrumented code of the functions of `file`, by name and line."""
        source = "".join(linecache.getlines(file))
        instrumented_by_place: _Codes = {}
        if library_of(file) or not source:
            return instrumented_by_place
        try:
            plain = compile(source, file, "exec", dont_inherit=True)
            tree = ast.fix_missing_locations(_Instrumenter(file).visit(ast.parse(source)))
            instrumented = compile(tree, file, "exec", dont_inherit=True)
        except SyntaxError:
            return instrumented_by_place
        for code, instrumented_code in zip(_codes(plain), _codes(instrumented), strict=True):
            assert code.co_freevars == instrumented_code.co_freevars
            if code.co_code != instrumented_code.co_code:
                instrumented_by_place.setdefault((code.co_name, code.co_firstlineno), []).append(
                    (code, instrumented_code)
                )
        return instrumented_by_place


class _Instrumenter(ast.NodeTransformer):
    """Wraps each condition in a call that reports its value and place."""

    def __init__(self, file: str) -> None:
        self._file = file

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if node.orelse or not isinstance(node.body[-1], ast.Raise):
            node.test = self._instrument_test(node.test)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._with_test(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return self._with_test(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs = [self._instrument_test(test) for test in node.ifs]
        return node

    def _with_test(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        node.test = self._instrument_test(node.test)
        return node  # type: ignore[no-any-return]  # a node

    def _instrument_test(self, test: ast.expr) -> ast.expr:
        """Wrap the parts of ``and``, ``or`` and ``not`` one by one; constants stay as they are."""
        if isinstance(test, ast.BoolOp):
            test.values = [self._instrument_test(operand) for operand in test.values]
            return test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test.operand = self._instrument_test(test.operand)
            return test
        if isinstance(test, ast.Constant):
            return test
        place = ast.Constant((self._file, test.lineno, ast.unparse(test)))  # type: ignore[arg-type]  # compiles
        call = ast.Call(ast.Name(_HOOK_NAME, ast.Load()), [place, test], [])
        return ast.copy_location(call, test)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


class _ChoiceRecorder(TorchFunctionMode):
    """Records the conditions of `torch.where` and similar functions."""

    def __init__(self, conditions: ConditionRecorder) -> None:
        super().__init__()
        self._conditions = conditions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _CHOOSING_FUNCTIONS:
            with DisableTorchFunction():
                condition = next((argument for argument in args[:2] if _is_condition(argument)), None)
                if condition is not None:
                    self._conditions.record_choice(condition)
        return func(*args, **kwargs or {})


def _is_condition(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool and value.numel() > 0
