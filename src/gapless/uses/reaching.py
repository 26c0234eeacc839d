"""Where a name is loaded that a binding gave a value: reaching definitions over the blocks of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gapless.uses.source_files import COMPREHENSIONS, FUNCTIONS, LOOPS, Function, SourceFile, names_in


def loads_of_parameter(function: Function, name: str) -> list[ast.Name]:
    """Return the loads of a parameter that see the value that the caller passed."""
    if isinstance(function, ast.Lambda):
        return list(_loads(function.body, name))
    return [*_scan_block(function.body, name)[0], *_closure_loads(function, name)]


def loads_after(file: SourceFile, name: str, binding: ast.AST) -> list[ast.Name]:
    """Return the loads of `name` that see what `binding` stored in it.

    `binding` is a statement, a loop, a ``with`` item, a comprehension or an assignment expression.
    """
    if isinstance(binding, COMPREHENSIONS):
        return [node for node in ast.walk(binding) if isinstance(node, ast.Name) and _is_load(node, name)]
    statement = file.statement(binding)
    loads: list[ast.Name] = []
    inner: list[ast.stmt] = []
    if isinstance(binding, ast.NamedExpr):
        after = (binding.end_lineno or 0, binding.end_col_offset or 0)
        loads += [
            load for load in _loads(statement, name, deep=False) if (load.lineno, load.col_offset) >= after
        ]
        inner = [*getattr(statement, "body", ()), *getattr(statement, "orelse", ())]
    elif isinstance(statement, (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)):
        inner = statement.body
    loads += _scan_block(inner, name)[0]
    loads += _loads_behind(file, statement, name)
    scope = file.scope(statement)
    if is_declared(scope, name):
        scope = file.tree
    return list(dict.fromkeys([*loads, *_closure_loads(scope, name)]))


def in_loop_of(file: SourceFile, binding: ast.AST, loads: Sequence[ast.Name]) -> list[ast.Name]:
    """Return those of `loads` in the innermost loop around `binding`; all if there is none."""
    loop = file.around(binding, *LOOPS, *FUNCTIONS)
    return [load for load in loads if not isinstance(loop, LOOPS) or loop in file.chain(load)]


def is_declared(scope: ast.AST, name: str) -> bool:
    """Whether `name` is global or nonlocal in `scope`."""
    return any(
        isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names for node in ast.walk(scope)
    )


def _loads_behind(file: SourceFile, statement: ast.stmt, name: str) -> list[ast.Name]:
    """Return the loads that may run after `statement`, up to the end of its function."""
    loads: list[ast.Name] = []
    node: ast.AST = statement
    while (parent := file.parents.get(node)) is not None:
        block = _block_of(parent, node)
        if block is None:
            if isinstance(parent, (*FUNCTIONS, ast.ClassDef)):
                break
            node = parent
            continue
        place = block.index(node)  # type: ignore[arg-type]
        rest, through = _scan_block(block[place + 1 :], name)
        loads += rest
        if isinstance(parent, (ast.Try, ast.ExceptHandler)):
            loads += _loads_of_handlers(parent, block, name)
        if isinstance(parent, LOOPS) and block is parent.body:
            loads += _loads_around(parent, block[: place + 1], name)
            through = through or any(isinstance(each, (ast.Break, ast.Continue)) for each in ast.walk(parent))
        if not through or isinstance(parent, (*FUNCTIONS, ast.ClassDef, ast.Module)):
            break
        node = parent
    return loads


def _block_of(parent: ast.AST, node: ast.AST) -> list[ast.stmt] | None:
    """Return the block of `parent` that holds `node`."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and node in block:
            return block
    return None


def _loads_of_handlers(parent: ast.AST, block: list[ast.stmt], name: str) -> list[ast.Name]:
    """Return the loads in what follows a block of a ``try``."""
    if not isinstance(parent, ast.Try):
        return []
    blocks = [parent.finalbody]
    if block is parent.body:
        blocks += [handler.body for handler in parent.handlers] + [parent.orelse]
    return [load for each in blocks if each is not block for load in _scan_block(each, name)[0]]


def _loads_around(
    loop: ast.For | ast.AsyncFor | ast.While, start: Sequence[ast.stmt], name: str
) -> list[ast.Name]:
    """Return the loads in the next turn of `loop`, up to the end of its statements `start`."""
    if isinstance(loop, ast.While):
        return [*_loads(loop.test, name), *_scan_block(start, name)[0]]
    return [] if name in names_in(loop.target, ast.Store) else _scan_block(start, name)[0]


def _scan_block(block: Sequence[ast.stmt], name: str) -> tuple[list[ast.Name], bool]:
    """Return the loads that see the value `name` has before `block`, and whether it may keep it."""
    loads: list[ast.Name] = []
    for statement in block:
        own, through = _scan(statement, name)
        loads += own
        if not through:
            return loads, False
    return loads, True


def _scan(statement: ast.stmt, name: str) -> tuple[list[ast.Name], bool]:
    """Scan one statement as `_scan_block` does."""
    if isinstance(statement, (ast.If, *LOOPS)):
        return _scan_branches(statement, name)
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        own = [load for item in statement.items for load in _loads(item.context_expr, name)]
        if any(
            item.optional_vars is not None and name in names_in(item.optional_vars, ast.Store)
            for item in statement.items
        ):
            return own, False
        inner, through = _scan_block(statement.body, name)
        return [*own, *inner], through
    if isinstance(statement, ast.Try):
        return _scan_try(statement, name)
    if isinstance(statement, ast.Match):
        scans = [_scan_block(case.body, name) for case in statement.cases]
        own = [*_loads(statement.subject, name), *(load for loads, _ in scans for load in loads)]
        return own, True
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [], statement.name != name  # what it reads of the function around it is a closure's
    loads = list(_loads(statement, name))
    if isinstance(statement, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
        return loads, False
    if isinstance(statement, ast.AugAssign):
        return loads, True  # the sum still holds it
    return loads, name not in names_in(statement, ast.Store) and name not in names_in(statement, ast.Del)


def _scan_branches(
    statement: ast.If | ast.For | ast.AsyncFor | ast.While, name: str
) -> tuple[list[ast.Name], bool]:
    """Scan an ``if`` or a loop."""
    head = statement.iter if isinstance(statement, (ast.For, ast.AsyncFor)) else statement.test
    loads = list(_loads(head, name))
    if name in names_in(head, ast.Store):
        return loads, False
    rebinds = isinstance(statement, (ast.For, ast.AsyncFor)) and name in names_in(statement.target, ast.Store)
    body, through = _scan_block([] if rebinds else statement.body, name)
    other, through_other = _scan_block(statement.orelse, name)
    loads += [*body, *other]
    return loads, through or through_other or isinstance(statement, LOOPS)


def _scan_try(statement: ast.Try, name: str) -> tuple[list[ast.Name], bool]:
    """Scan a ``try``: its handlers may run after any part of its body."""
    body, through = _scan_block([*statement.body, *statement.orelse], name)
    loads = list(body)
    for handler in statement.handlers:
        own, through_handler = _scan_block(handler.body, name)
        loads += own
        through = through or through_handler
    own, through_end = _scan_block(statement.finalbody, name)
    return [*loads, *own], through and through_end


def _loads(node: ast.AST, name: str, deep: bool = True) -> Iterator[ast.Name]:
    """Yield the loads of `name` in an expression or a simple statement, without those of another variable.

    ``deep=False`` leaves out the blocks of a compound statement.
    """
    if _is_load(node, name):
        assert isinstance(node, ast.Name)
        yield node
    if isinstance(node, ast.Lambda) and name in _parameters(node):
        return
    if isinstance(node, COMPREHENSIONS) and any(
        name in names_in(each.target, ast.Store) for each in node.generators
    ):
        yield from _loads(node.generators[0].iter, name)
        return
    for child in ast.iter_child_nodes(node):
        if deep or not isinstance(child, ast.stmt):
            yield from _loads(child, name, deep)


def _is_load(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _parameters(function: Function) -> set[str]:
    arguments = function.args
    every = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    return {argument.arg for argument in every if argument is not None}


def _closure_loads(scope: ast.AST, name: str) -> list[ast.Name]:
    """Return the loads of `name` in functions inside `scope` that have no variable of this name."""
    loads: list[ast.Name] = []
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            stores = names_in(node, ast.Store) if not is_declared(node, name) else set()
            if name in _parameters(node) or name in stores:
                continue
            loads += [each for each in ast.walk(node) if isinstance(each, ast.Name) and _is_load(each, name)]
            continue
        pending += ast.iter_child_nodes(node)
    return loads
