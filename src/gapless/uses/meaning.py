"""Tell from the text what an expression is: a tensor, a dict, a check for NaN, an element of a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from gapless.uses import callees
from gapless.uses.source_files import (
    COMPREHENSIONS,
    FUNCTIONS,
    SourceFile,
    called_name,
    names_in,
    root_name,
)

_MAX_DEPTH = 4
"""Assignments that an expression is traced back through."""


def values_of(file: SourceFile, name: ast.Name) -> Iterator[ast.expr]:
    """Yield what is assigned to `name` in its function, or in the module if it is not assigned there."""
    for scope in dict.fromkeys((file.scope(name), file.tree)):
        count = 0
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name) and target.id == name.id:
                        count += 1
                        yield node.value
            elif _assigns(node, name.id) and node.value is not None:
                count += 1
                yield node.value
        if count:
            return


def _assigns(node: ast.AST, name: str) -> TypeGuard[ast.AnnAssign | ast.NamedExpr]:
    if not isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        return False
    return isinstance(node.target, ast.Name) and node.target.id == name


def is_tensor(file: SourceFile, node: ast.AST, depth: int = 0) -> bool:
    """Whether the text alone says that `node` is a tensor."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(node, ast.BinOp):
        return is_tensor(file, node.left, depth + 1) or is_tensor(file, node.right, depth + 1)
    if isinstance(node, (ast.UnaryOp, ast.Subscript)):
        inner = node.operand if isinstance(node, ast.UnaryOp) else node.value
        return is_tensor(file, inner, depth + 1)
    if isinstance(node, ast.Compare):
        return any(is_tensor(file, side, depth + 1) for side in (node.left, *node.comparators))
    if isinstance(node, ast.Call):
        return _makes_tensor(file, node, depth)
    if isinstance(node, ast.Name):
        return _has_tensor_method(file, node) or any(
            value is not node and is_tensor(file, value, depth + 1) for value in values_of(file, node)
        )
    return False


def _makes_tensor(file: SourceFile, call: ast.Call, depth: int) -> bool:
    name, root = called_name(call), root_name(call.func)
    if name in callees.PLAIN_RESULTS or root in callees.NOT_CUDA_TENSORS:
        return False
    if root in ("torch", "F"):
        return ".utils." not in ast.unparse(call.func) and name not in (
            "device",
            "is_tensor",
            "Size",
            "manual_seed",
            "compile",
            "load",
        )
    if not isinstance(call.func, ast.Attribute):
        return False
    if name in callees.TENSOR_MAKERS - {"to", "cuda", "half", "float", "bfloat16"}:
        return root != "self" or isinstance(call.func.value, ast.Call)
    return is_tensor(file, call.func.value, depth + 1)


def _has_tensor_method(file: SourceFile, name: ast.Name) -> bool:
    """Whether a method that only tensors have is called on the variable in its function."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name.id
        and node.attr in ("backward", "detach", "item", "unsqueeze", "is_cuda")
        and isinstance(file.parents.get(node), ast.Call)
        for node in ast.walk(file.scope(name))
    )


def is_dict(file: SourceFile, node: ast.AST) -> bool:
    """Whether `node` is a dict by its assignment."""
    if isinstance(node, (ast.Dict, ast.DictComp)):
        return True
    text = ast.unparse(node)
    for each in ast.walk(file.tree):
        targets = (
            each.targets
            if isinstance(each, ast.Assign)
            else [each.target]
            if isinstance(each, ast.AnnAssign)
            else []
        )
        value = getattr(each, "value", None)
        if targets and value is not None and any(ast.unparse(target) == text for target in targets):
            if isinstance(value, (ast.Dict, ast.DictComp)):
                return True
            if isinstance(value, ast.Call) and called_name(value) in (
                "dict",
                "defaultdict",
                "OrderedDict",
                "Counter",
            ):
                return True
    return False


def walked_tensor(file: SourceFile, node: ast.AST) -> str:
    """Return the tensors of which `node` is an element or a row, because a loop walks over them; "" if none.

    >>> file = SourceFile("", ast.parse("for t in torch.arange(9):\\n    f(t.item())"), "")
    >>> walked_tensor(file, file.calls["item"][0].func.value)
    'torch.arange(9)'
    """
    walked: dict[str, None] = {}
    for name in (
        each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    ):
        for target, iterated in _turns(file, name):
            if name.id in names_in(target, ast.Store):
                walked.update(dict.fromkeys(_walked_by(file, name.id, target, iterated)))
    if isinstance(node, ast.Subscript) and (owner := _indexed_by_turn(file, node)):
        walked[owner] = None
    return "`, `".join(walked)


def _turns(file: SourceFile, node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield target and iterable of the loops around `node` in its function, innermost first."""
    for each in file.chain(node):
        if isinstance(each, FUNCTIONS):
            return
        if isinstance(each, (ast.For, ast.AsyncFor)):
            if not any(inner is node for inner in ast.walk(each.iter)):
                yield each.target, each.iter
        elif isinstance(each, COMPREHENSIONS):
            for generator in each.generators:
                yield generator.target, generator.iter


def _walked_by(file: SourceFile, name: str, target: ast.expr, iterated: ast.expr) -> Iterator[str]:
    """Yield the text of the tensors of which a loop's `name` is an element."""
    if (
        isinstance(iterated, ast.Call)
        and isinstance(iterated.func, ast.Name)
        and isinstance(target, (ast.Tuple, ast.List))
    ):
        if iterated.func.id == "zip" and len(iterated.args) == len(target.elts):
            for part, argument in zip(target.elts, iterated.args, strict=True):
                yield from _walked_by(file, name, part, argument)
        elif iterated.func.id == "enumerate" and len(target.elts) == 2 and iterated.args:
            yield from _walked_by(file, name, target.elts[1], iterated.args[0])
        return
    if isinstance(target, ast.Name) and target.id == name and is_tensor(file, iterated):
        yield file.text(iterated)


def _indexed_by_turn(file: SourceFile, node: ast.Subscript) -> str:
    """Return the tensor of ``x[i]`` if `i` counts a loop that does not change it; "" otherwise."""
    used = names_in(node.slice)
    for target, iterated in _turns(file, node):
        if not (used & names_in(target, ast.Store)) or not isinstance(node.value, (ast.Name, ast.Attribute)):
            continue
        counted = isinstance(iterated, ast.Call) and called_name(iterated) in ("range", "enumerate")
        loop = file.parents[iterated]
        loop = loop if isinstance(loop, (ast.For, ast.AsyncFor)) else file.parents[loop]
        root = root_name(node.value)
        if counted and root not in _written(loop) and is_tensor(file, node.value):
            return file.text(node.value)
    return ""


def _written(loop: ast.AST) -> set[str]:
    """Return the roots of all that `loop` assigns to."""
    written = set()
    for node in ast.walk(loop):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            written.add(root_name(node))
    return written
