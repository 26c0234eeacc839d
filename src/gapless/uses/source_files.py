"""The user's source files as trees that know their parents, and the functions that their calls reach."""

from __future__ import annotations

import ast
import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache

ReadSource = Callable[[str], str]
"""Returns the text of a source file, or raises OSError, SyntaxError or UnicodeDecodeError."""

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MAX_CHARS = 200_000
"""Larger files are generated or data: they are not analysed."""
_MAX_TEXT = 60
"""Longer expressions are cut where they are quoted."""
_MAX_FILES = 20
"""Files that one project reads: those on the stacks, and what they import as far as values are followed."""
_MAX_FOLDERS = 4
"""Folders above a file in which an imported module is searched."""


class SourceFile:
    """One parsed file."""

    def __init__(self, path: str, tree: ast.Module, text: str) -> None:
        self.path = path
        self.tree = tree
        self._lines = text.encode().splitlines()
        self.parents: dict[ast.AST, ast.AST] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        self.functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = defaultdict(list)
        self.classes: dict[str, ast.ClassDef] = {}
        self.calls: dict[str, list[ast.Call]] = defaultdict(list)
        self.attributes: dict[str, list[ast.Attribute]] = defaultdict(list)
        self.assigned: dict[str, list[tuple[ast.expr, ast.expr]]] = defaultdict(list)
        """Targets with what is assigned to them, by the last word of the target's name."""
        self.tensors: dict[ast.AST, bool] = {}
        """Expressions of which it was decided whether they are tensors."""
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            self._note(node)

    def _note(self, node: ast.AST) -> None:
        """Enter `node` into the tables of names."""
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            self.imports.update({name.asname or name.name: (module, name.name) for name in node.names})
        elif isinstance(node, ast.Import):
            for name in node.names:
                module = name.name if name.asname else name.name.partition(".")[0]
                self.imports[name.asname or module] = (module, "")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.functions[node.name].append(node)
        elif isinstance(node, ast.ClassDef):
            self.classes.setdefault(node.name, node)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self.attributes[node.attr].append(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.assigned[last_name(target)].append((target, node.value))
        if isinstance(node, ast.Call):
            self.calls[called_name(node)].append(node)

    def chain(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield `node` and the nodes around it, innermost first."""
        at: ast.AST | None = node
        while at is not None:
            yield at
            at = self.parents.get(at)

    def around(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        """Return the innermost node of these kinds around `node`."""
        return next(
            (each for each in self.chain(self.parents.get(node, self.tree)) if isinstance(each, kinds)), None
        )

    def scope(self, node: ast.AST) -> Function | ast.Module:
        """Return the function around `node`, otherwise the module."""
        around = self.around(node, *FUNCTIONS)
        return around if isinstance(around, FUNCTIONS) else self.tree

    def note_tensors(self, scope: ast.AST, names: frozenset[str]) -> None:
        """Take the variables `names` of a function, or of the module, for tensors; no others are known."""
        variables = (each for each in ast.walk(scope) if isinstance(each, ast.Name) and each.id in names)
        self.tensors = {each: True for each in variables if self.scope(each) is scope}

    def scope_at(self, line: int) -> ast.AST:
        """Return the innermost function around a line, otherwise the module."""
        around = [
            function
            for functions in self.functions.values()
            for function in functions
            if function.lineno <= line <= (function.end_lineno or 0)
        ]
        return max(around, key=lambda function: function.lineno, default=self.tree)

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that `node` is or is part of."""
        return next(each for each in self.chain(node) if isinstance(each, ast.stmt))

    def text(self, node: ast.AST) -> str:
        """Return the source of `node` on one line, shortened if it is long."""
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if line and line == end and line <= len(self._lines):
            raw = self._lines[line - 1][node.col_offset : node.end_col_offset]  # type: ignore[attr-defined]
            text = raw.decode(errors="replace").strip()
        else:
            text = " ".join(ast.unparse(node).split())
        return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


@lru_cache(64)
def _parse(path: str, text: str) -> SourceFile | None:
    if len(text) > _MAX_CHARS:
        return None
    try:
        return SourceFile(path, ast.parse(text), text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two if it nests too deep
        return None


class Project:
    """The files on recorded stacks, and what they import, each read when it is first needed."""

    def __init__(self, read: ReadSource) -> None:
        self._read = read
        self._imports: dict[tuple[str, str], tuple[SourceFile, str] | None] = {}
        self.files: dict[str, SourceFile | None] = {}

    def file(self, path: str) -> SourceFile | None:
        """Return the parsed file; None if it cannot be read or is no Python."""
        if path not in self.files:
            text = None
            if len(self.files) < _MAX_FILES:
                with contextlib.suppress(OSError, SyntaxError, ValueError):
                    text = self._read(path)
            self.files[path] = _parse(path, text) if text is not None else None
        return self.files[path]

    def resolve_import(self, file: SourceFile, name: str) -> tuple[SourceFile, str] | None:
        """Return the file that `name` of `file` is imported from, and its name there ("": the module)."""
        if name not in file.imports:
            return None
        key = file.path, name
        if key not in self._imports:
            self._imports[key] = self._find_import(file, name)
        return self._imports[key]

    def _find_import(self, file: SourceFile, name: str) -> tuple[SourceFile, str] | None:
        module, inner = file.imports[name]
        if inner and (
            whole := self._module(file, f"{module}.{inner}" if module.strip(".") else module + inner)
        ):
            return whole, ""
        module_file = self._module(file, module)
        return (module_file, inner) if module_file is not None else None

    def _module(self, file: SourceFile, dotted: str) -> SourceFile | None:
        level = len(dotted) - len(dotted.lstrip("."))
        parts = dotted.lstrip(".").split(".")
        folder = os.path.dirname(file.path)
        for _ in range(level - 1):
            folder = os.path.dirname(folder)
        for _ in range(1 if level else _MAX_FOLDERS):
            base = os.path.join(folder, *parts)
            for path in (f"{base}.py", os.path.join(base, "__init__.py")):
                if path in self.files or os.path.isfile(path):
                    return self.file(path)
            folder = os.path.dirname(folder)
        return None


def pair_targets(target: ast.expr, iterated: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of a loop, each with what it walks over, also through `zip` and `enumerate`."""
    function = iterated.func if isinstance(iterated, ast.Call) else None
    if not isinstance(function, ast.Name) or not isinstance(target, (ast.Tuple, ast.List)):
        yield target, iterated
        return
    arguments = iterated.args  # type: ignore[attr-defined]
    if function.id == "zip" and len(arguments) == len(target.elts):
        for part, argument in zip(target.elts, arguments, strict=True):
            yield from pair_targets(part, argument)
    elif function.id == "enumerate" and len(target.elts) == 2 and arguments:
        yield from pair_targets(target.elts[1], arguments[0])


def called_name(call: ast.Call) -> str:
    """Return the last name of what is called."""
    return last_name(call.func)


def last_name(node: ast.AST) -> str:
    """Return ``c`` of ``a.b.c``; "" of what has no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def root_name(node: ast.AST) -> str:
    """Return ``a`` of ``a.b(c)[d].e``; "" of what has none."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def names_in(node: ast.AST, context: type[ast.expr_context] = ast.Load) -> set[str]:
    """Return the names that `node` loads or stores."""
    return {
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)
    }
