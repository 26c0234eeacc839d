"""Tell from the text what an expression is: a tensor, a dict, a check for NaN, an element of a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gapless.model.use import NamedTensors
from gapless.uses import callees
from gapless.uses.source_files import (
    COMPREHENSIONS,
    FUNCTIONS,
    SourceFile,
    called_name,
    names_in,
    pair_targets,
    root_name,
)
from gapless.uses.unseen import changes_in_place

_NO_TENSORS = (
    "device",
    "is_tensor",
    "Size",
    "manual_seed",
    "compile",
    "load",
    "Generator",
    "Stream",
    "Event",
)
"""Functions of torch that make no tensor, or nobody knows what."""
_DICTS = ("dict", "defaultdict", "OrderedDict", "Counter")
_UNKNOWN = NamedTensors()
_MAX_DEPTH = 4
"""Assignments that an expression is traced back through."""


def values_of(file: SourceFile, name: ast.Name) -> list[ast.expr]:
    """Return what is assigned to `name` in its function, or in the module if it is not assigned there."""
    every = [(target, value) for target, value in file.assigned[name.id] if isinstance(target, ast.Name)]
    for scope in (file.scope(name), file.tree):
        if values := [value for target, value in every if file.scope(target) is scope]:
            return values
    return []


def is_tensor(file: SourceFile, node: ast.AST, depth: int = 0) -> bool:
    """Whether the text alone says that `node` is a tensor."""
    if depth > _MAX_DEPTH:
        return False
    if node not in file.tensors:
        file.tensors[node] = False  # while it is looked at: an assignment may refer to itself
        file.tensors[node] = _looks_like_tensor(file, node, depth)
    return file.tensors[node]


def _looks_like_tensor(file: SourceFile, node: ast.AST, depth: int) -> bool:
    if isinstance(node, ast.BinOp):
        return is_tensor(file, node.left, depth + 1) or is_tensor(file, node.right, depth + 1)
    if isinstance(node, (ast.UnaryOp, ast.Subscript)):
        inner = node.operand if isinstance(node, ast.UnaryOp) else node.value
        return is_tensor(file, inner, depth + 1)
    if isinstance(node, ast.Compare):
        return any(is_tensor(file, side, depth + 1) for side in (node.left, *node.comparators))
    if isinstance(node, ast.Call):
        return _makes_tensor(file, node, depth)
    if isinstance(node, ast.Name) and any(map(_is_plain, values_of(file, node))):
        return False  # once it was read, the name is no tensor's
    if isinstance(node, ast.Name):
        return _has_tensor_method(file, node) or any(
            value is not node and is_tensor(file, value, depth + 1) for value in values_of(file, node)
        )
    return False


def _is_plain(value: ast.expr) -> bool:
    """Whether a value is the result of a read."""
    return isinstance(value, ast.Call) and called_name(value) in (*callees.PLAIN_RESULTS, "int", "len")


def _makes_tensor(file: SourceFile, call: ast.Call, depth: int) -> bool:
    name, root = called_name(call), root_name(call.func)
    if name in callees.PLAIN_RESULTS or root in callees.NOT_CUDA_TENSORS:
        return False
    if root in ("torch", "F"):
        return ".utils." not in ast.unparse(call.func) and name not in _NO_TENSORS
    if not isinstance(call.func, ast.Attribute):
        return False
    if name in callees.TENSOR_MAKERS - {"to", "cuda", "half", "float", "bfloat16"}:
        return root != "self" or isinstance(call.func.value, ast.Call)
    return is_tensor(file, call.func.value, depth + 1)


def _has_tensor_method(file: SourceFile, name: ast.Name) -> bool:
    """Whether a method that only tensors have is called on the variable in its function."""
    scope = file.scope(name)
    return any(
        isinstance(load.value, ast.Name)
        and load.value.id == name.id
        and isinstance(file.parents.get(load), ast.Call)
        and file.scope(load) is scope
        for method in ("backward", "detach", "item", "unsqueeze", "is_cuda")
        for load in file.attributes.get(method, ())
    )


def is_dict(file: SourceFile, node: ast.AST) -> bool:
    """Whether `node` is a dict by its assignment."""
    if isinstance(node, (ast.Dict, ast.DictComp)):
        return True
    if isinstance(node, ast.Call):
        return called_name(node) in _DICTS
    return any(
        isinstance(value, (ast.Dict, ast.DictComp, ast.Call)) and is_dict(file, value)
        for value in _values(file, node)
    )


def is_list(file: SourceFile, node: ast.AST) -> bool:
    """Whether `node` is a list by its assignment, also one that was multiplied (``[0.0] * n``)."""
    values = [value.left if isinstance(value, ast.BinOp) else value for value in _values(file, node)]
    return any(isinstance(value, (ast.List, ast.ListComp)) for value in values)


def _values(file: SourceFile, node: ast.AST) -> list[ast.expr]:
    """Return what is assigned to a name or an attribute."""
    return (
        attribute_values(file, node)
        if isinstance(node, ast.Attribute)
        else values_of(file, node)
        if isinstance(node, ast.Name)
        else []
    )


def attribute_values(file: SourceFile, attribute: ast.Attribute) -> list[ast.expr]:
    """Return what is assigned to the same attribute of the same expression."""
    owner = ast.dump(attribute.value)
    return [
        value
        for target, value in file.assigned[attribute.attr]
        if isinstance(target, ast.Attribute) and ast.dump(target.value) == owner
    ]


def walked_tensor(file: SourceFile, node: ast.AST, named: NamedTensors = _UNKNOWN) -> str:
    """Return the tensors of which `node` is an element or a row, because a loop walks over them; "" if none.

    `named` are the tensors that its function names.

    >>> file = SourceFile("", ast.parse("for t in torch.arange(9):\\n    f(t.item())"), "")
    >>> walked_tensor(file, file.calls["item"][0].func.value)
    'torch.arange(9)'
    """
    return "`, `".join(_walked_owners(file, node, named.on_gpu))


def _walked_owners(file: SourceFile, node: ast.AST, tensors: frozenset[str]) -> dict[str, None]:
    """Return the tensors that loops around `node` walk over; empty if it is made of others, too."""
    walked: dict[str, None] = {}
    for each in ast.walk(node):
        if isinstance(each, ast.Subscript) and (owner := _indexed_by_turn(file, each, tensors)):
            walked[owner] = None
    elements: set[str] = set()
    for name in (each for each in ast.walk(node) if isinstance(each, ast.Name) and _is_loaded(each)):
        for target, iterated in _turns(file, name):
            if name.id in names_in(target, ast.Store):
                owners = dict.fromkeys(_walked_by(file, name.id, target, iterated, tensors))
                elements.update({name.id} if owners else ())
                walked.update(owners)
    if not walked and isinstance(node, ast.Name):
        return _walked_before(file, node, tensors)
    return walked if _consists_of(file, node, elements | {*walked}, tensors) else {}


def _is_loaded(node: ast.expr) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load)


def _walked_before(file: SourceFile, name: ast.Name, tensors: frozenset[str]) -> dict[str, None]:
    """Return the walked tensors of which a variable is a row, if the loop's one assignment says so."""
    values = values_of(file, name)
    if len(values) != 1 or not isinstance(values[0], ast.Subscript) or name.id in names_in(values[0]):
        return {}
    return _walked_owners(file, values[0], tensors)


def _consists_of(file: SourceFile, node: ast.AST, elements: set[str], tensors: frozenset[str]) -> bool:
    """Whether no tensor but `elements` is in the expression, and no function is called but their methods."""
    for each in ast.walk(node):
        text = ast.unparse(each) if isinstance(each, (ast.Name, ast.Attribute)) else ""
        if isinstance(each, ast.Call) and not _is_method_of(each.func, elements):
            return False
        if (
            text
            and text not in elements
            and (text in tensors or (isinstance(each, ast.Name) and is_tensor(file, each)))
        ):
            return False
    return True


def _is_method_of(function: ast.AST, elements: set[str]) -> bool:
    """Whether a method of one of `elements`, or of what it returns, is called."""
    at = function
    while isinstance(at, (ast.Attribute, ast.Subscript, ast.Call)):
        at = at.func if isinstance(at, ast.Call) else at.value
        if ast.unparse(at) in elements:
            return True
    return False


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


def _walked_by(
    file: SourceFile, name: str, target: ast.expr, iterated: ast.expr, tensors: frozenset[str]
) -> Iterator[str]:
    """Yield the text of the tensors of which a loop's `name` is an element, unless the loop changes them."""
    for part, walked in pair_targets(target, iterated):
        if isinstance(part, ast.Name) and part.id == name and _is_on_gpu(file, walked, tensors):
            elements = changes_in_place(file, _loop_of(file, iterated), name)
            if not elements and not changes_in_place(file, _loop_of(file, iterated), root_name(walked)):
                yield file.text(walked)


def _loop_of(file: SourceFile, iterated: ast.expr) -> ast.AST:
    """Return the loop or the comprehension that walks over `iterated`."""
    loop = file.parents[iterated]
    return file.parents[loop] if isinstance(loop, ast.comprehension) else loop


def _is_on_gpu(file: SourceFile, node: ast.expr, tensors: frozenset[str]) -> bool:
    """Whether an expression is among the `tensors` of the GPU, or a tensor by its text."""
    return file.text(node) in tensors or is_tensor(file, node)


def _indexed_by_turn(file: SourceFile, node: ast.Subscript, tensors: frozenset[str]) -> str:
    """Return the tensor of ``x[i]`` or ``x[i, j]`` if loops that do not change it count `i`; "" otherwise."""
    places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if not isinstance(node.value, (ast.Name, ast.Attribute)) or not _is_on_gpu(file, node.value, tensors):
        return ""
    root = root_name(node.value)
    for place in places:
        loop = next((loop for name, loop in _counting_loops(file, node) if ast.unparse(place) == name), None)
        if loop is None or root in _written(loop) or changes_in_place(file, loop, root):
            return ""
    return file.text(node.value)


def _counting_loops(file: SourceFile, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that count the turns of loops around `node`, each with its loop."""
    for target, iterated in _turns(file, node):
        counted = called_name(iterated) if isinstance(iterated, ast.Call) else ""
        counter = target.elts[0] if counted == "enumerate" and isinstance(target, ast.Tuple) else target
        if counted in ("range", "enumerate") and isinstance(counter, ast.Name):
            yield counter.id, _loop_of(file, iterated)


def _written(loop: ast.AST) -> set[str]:
    """Return the roots of all that `loop` assigns to."""
    written = set()
    for node in ast.walk(loop):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            written.add(root_name(node))
    return written


def adds_to(value: ast.AST, target: ast.AST) -> bool:
    """Whether ``target = target + …`` adds to the target."""
    text = ast.unparse(target)
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Add, ast.Sub)):
            if text in (ast.unparse(part.left), ast.unparse(part.right)):
                return True
            pending += [part.left, part.right]
    return False
