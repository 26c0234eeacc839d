"""Where a variable of one function is stored and loaded, and where a loop needs its value."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gapless.fixes.editing.editable import EditableFile, Refused
from gapless.model.fix import Edit
from gapless.uses import unseen
from gapless.uses.source_files import COMPREHENSIONS, FUNCTIONS, LOOPS, SourceFile, called_name, names_in

Loop = ast.For | ast.AsyncFor | ast.While

_CATCHING = ("suppress", "raises", "ExitStack")
"""Contexts that catch errors, or hold others that do."""


@dataclass(frozen=True)
class Variable:
    """A variable that only one scope uses: its stores (a name each) and loads."""

    name: str
    scope: ast.AST
    stores: tuple[ast.Name, ...]
    loads: tuple[ast.Name, ...]


def find_variable(file: SourceFile, name: ast.Name, script: str) -> Variable:
    """Return the variable that `name` stands for; `script` is the path of the program's main file.

    Raises:
        Refused: another scope, another file or something that the text does not show may use it, too.
    """
    scope, text = file.scope(name), name.id
    if unseen.in_class(file, name):
        raise Refused(f"`{text}` is an attribute of a class")
    if scope is file.tree and file.path != script:
        raise Refused(f"other files may read `{text}`")
    if unseen.is_read_by_name(file, scope):
        raise Refused(f"`{text}` may be read by its name")
    names = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == text]
    stores = tuple(node for node in names if isinstance(node.ctx, ast.Store) and file.scope(node) is scope)
    if any(isinstance(node, ast.arg) and node.arg == text for node in _own_arguments(scope)):
        raise Refused(f"`{text}` is an argument of the function")
    for node in names:
        if isinstance(node.ctx, ast.Del):
            raise Refused(f"`{text}` is deleted at line {node.lineno}")
        if file.scope(node) is not scope and not has_own(file, node, scope):
            raise Refused(f"`{text}` is used in another function at line {node.lineno}")
        if isinstance(node.ctx, ast.Store) and isinstance(
            file.around(node, *COMPREHENSIONS, ast.stmt), COMPREHENSIONS
        ):
            raise Refused(f"`{text}` is also a name in a comprehension at line {node.lineno}")
    for each in ast.walk(file.tree):
        if isinstance(each, (ast.Global, ast.Nonlocal)) and text in each.names:
            raise Refused(f"`{text}` belongs to another scope (line {each.lineno})")
    loads = tuple(node for node in names if isinstance(node.ctx, ast.Load) and file.scope(node) is scope)
    return Variable(text, scope, stores, loads)


def _own_arguments(scope: ast.AST) -> Iterator[ast.AST]:
    if isinstance(scope, FUNCTIONS):
        yield from ast.walk(scope.args)


def has_own(file: SourceFile, node: ast.Name, scope: ast.AST) -> bool:
    """Whether a function between `node` and `scope` has its own variable of this name."""
    for each in file.chain(node):
        if each is scope:
            return False
        if isinstance(each, FUNCTIONS):
            arguments = {argument.arg for argument in ast.walk(each.args) if isinstance(argument, ast.arg)}
            stores = (
                set()
                if isinstance(each, ast.Lambda)
                else {name for statement in each.body for name in names_in(statement, ast.Store)}
            )
            if node.id in arguments | stores:
                return True
    return False


def assigned_value(file: SourceFile, store: ast.Name) -> ast.expr | None:
    """Return what an assignment, also of several names at once, stores in `store`; None if it is unknown.

    >>> file = SourceFile("", ast.parse("total, n = 0.0, 0"), "")
    >>> [assigned_value(file, node).value for node in ast.walk(file.tree) if isinstance(node, ast.Name)]
    [0.0, 0]
    """
    statement = file.statement(store)
    if isinstance(statement, ast.AnnAssign):
        return statement.value
    if not isinstance(statement, ast.Assign):
        return None
    for target in statement.targets:
        if target is store:
            return statement.value
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(statement.value, (ast.Tuple, ast.List)):
            pairs = list(zip(target.elts, statement.value.elts, strict=False))
            if len(target.elts) == len(statement.value.elts) and not any(
                isinstance(each, ast.Starred) for pair in pairs for each in pair
            ):
                value = next((value for part, value in pairs if part is store), None)
                if value is not None:
                    return value
    return None


def loops_around(file: SourceFile, node: ast.AST) -> list[Loop]:
    """Return the loops of the same function around `node`, innermost first."""
    loops: list[Loop] = []
    child = node
    for each in file.chain(node):
        if isinstance(each, FUNCTIONS) and each is not node:
            break
        if isinstance(each, LOOPS) and child in each.body:
            loops.append(each)
        child = each
    return loops


def is_inside(file: SourceFile, node: ast.AST, outer: ast.AST) -> bool:
    return any(each is outer for each in file.chain(node))


def rare_block(file: SourceFile, node: ast.AST, loop: Loop) -> list[ast.stmt] | None:
    """Return the outermost block around `node` that `loop` reaches in few of its turns; None if none shows.

    Those are blocks under a condition with ``%`` or about the last turn, and blocks that leave the loop.
    """
    rare: list[ast.stmt] | None = None
    child = node
    for each in file.chain(node):
        if each is loop:
            break
        if isinstance(child, ast.stmt):
            block = _block_with(each, child)
            if (
                block is not None
                and isinstance(each, ast.If)
                and (_is_periodic(each.test) or _leaves(file, block, loop))
            ):
                rare = block
        child = each
    return rare


def block_of(file: SourceFile, statement: ast.stmt) -> list[ast.stmt]:
    """Return the block that `statement` is in."""
    parent = file.parents[statement]
    blocks = [getattr(parent, field, None) for field in ("body", "orelse", "finalbody")]
    return next(block for block in blocks if isinstance(block, list) and statement in block)


def _block_with(parent: ast.AST, statement: ast.stmt) -> list[ast.stmt] | None:
    for block in (getattr(parent, "body", None), getattr(parent, "orelse", None)):
        if isinstance(block, list) and statement in block:
            return block
    return None


def _is_periodic(test: ast.expr) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return True
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
            sides = (node.left, *node.comparators)
            if any(
                isinstance(each, ast.Call) and getattr(each.func, "id", "") == "len"
                for side in sides
                for each in ast.walk(side)
            ):
                return True
    return False


def _leaves(file: SourceFile, block: list[ast.stmt], loop: Loop) -> bool:
    """Whether `loop` ends behind `block`."""
    if isinstance(block[-1], ast.Break):
        return loops_around(file, block[-1])[0] is loop
    return _ends_function(block)


def widest_loop(file: SourceFile, variable: Variable, statement: ast.stmt) -> Loop:
    """Return the outermost loop around `statement` in which nothing but `statement` needs the value often.

    Raises:
        Refused: even the innermost loop needs it in every turn, or there is none.
    """
    loops = loops_around(file, statement)
    if not loops:
        raise Refused("it is in no loop of this function")
    widest: Loop | None = None
    for loop in loops:
        often = [
            load
            for load in variable.loads
            if is_inside(file, load, loop)
            and not is_inside(file, load, statement)
            and rare_block(file, load, loop) is None
        ]
        if often:
            if widest is None:
                raise Refused(f"`{variable.name}` is needed in every step at line {often[0].lineno}")
            break
        widest = loop
    assert widest is not None
    return widest


def read_back(
    file: EditableFile, variable: Variable, statement: ast.stmt, loop: Loop, text: str
) -> list[Edit]:
    """Return edits that run `text`, which reads the variable, wherever its number is needed.

    Those are the blocks in `loop` that few turns reach, and the line behind the loop if something behind it
    loads the variable.

    Raises:
        Refused: such a block also runs `statement`, or the number is needed after an error in the loop.
    """
    source, edits = file.source, []
    for block in blocks_that_read(source, variable, statement, loop):
        first = next(each for each in block if any(is_inside(source, load, each) for load in variable.loads))
        if any(is_inside(source, statement, each) for each in block[block.index(first) :]):
            raise Refused(f"`{variable.name}` changes between its reads at line {first.lineno}")
        edits.append(file.insert_before(first, text))
    outside = [load for load in variable.loads if not is_inside(source, load, loop)]
    for load in outside:
        if line := _line_after_error(source, loop, load):
            raise Refused(
                f"an error caught at line {line} may leave the loop before `{variable.name}` is needed"
            )
    if any(is_inside(source, load, part) for load in variable.loads for part in loop.orelse):
        raise Refused(f"the `else` of the loop needs `{variable.name}`")
    if outside:
        edits.append(file.insert_after(loop, text))
    return edits


def _line_after_error(file: SourceFile, loop: Loop, load: ast.Name) -> int | None:
    """Return the line from which `load` is reached after an error in `loop`; None if it is not."""
    child: ast.AST = loop
    for each in file.chain(loop):
        if isinstance(each, ast.Try) and child in each.body:
            caught = [handler for handler in each.handlers if not _ends_function(handler.body)]
            late: list[ast.ExceptHandler | ast.stmt] = [*each.handlers, *each.finalbody]
            safe = [*each.body, *each.orelse]
            if any(is_inside(file, load, part) for part in late):
                return late[0].lineno
            if caught and not any(is_inside(file, load, part) for part in safe):
                return caught[0].lineno
        elif (
            isinstance(each, ast.With)
            and not is_inside(file, load, each)
            and any(_may_catch(file, item.context_expr) for item in each.items)
        ):
            return each.lineno
        child = each
    return None


def _may_catch(file: SourceFile, context: ast.expr) -> bool:
    """Whether a context may catch what is raised in it: it is made for that, or the project's own."""
    name = called_name(context) if isinstance(context, ast.Call) else ""
    return name in _CATCHING or name in file.functions or name in file.classes


def _ends_function(block: list[ast.stmt]) -> bool:
    return isinstance(block[-1], (ast.Return, ast.Raise))


def blocks_that_read(
    file: SourceFile, variable: Variable, statement: ast.stmt, loop: Loop
) -> Iterable[list[ast.stmt]]:
    """Return the blocks in `loop` that few of its turns reach and that load the variable."""
    blocks: dict[int, list[ast.stmt]] = {}
    for load in variable.loads:
        if is_inside(file, load, loop) and not is_inside(file, load, statement):
            block = rare_block(file, load, loop)
            if block is not None:
                blocks[id(block)] = block
    return blocks.values()
