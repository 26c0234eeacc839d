"""Find, while the script runs, the names that keep memory which each step leaves behind."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import msgspec
import torch

from gapless.emulation.memory.additions import ADDERS, find_additions, mentions, refers_to, tree_of
from gapless.emulation.memory.references import Edge, Walk
from gapless.emulation.memory.retained_tree import Leftover, RetainedTree
from gapless.emulation.support.local import local
from gapless.emulation.support.stacks import frames_of_script, is_own, library_of, variables
from gapless.model.memory import Holder
from gapless.model.pace import MIN_REPEATS
from gapless.model.source import SourceLine
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

_MAX_HOLDERS = 3
"""Holders named at most: the largest."""
_SIZED = (list, dict, set, deque)


def find_holders(
    growing: Mapping[int, Leftover], frame: FrameType | None, every: int = 1
) -> tuple[Holder, ...]:
    """Return the names that keep the storages in `growing`, by their keys; the most bytes first.

    `every` is the number of steps between two that leave something. `frame` is the innermost running frame:
    names of running functions and of the program's modules count.
    """
    local.quiet += 1
    try:
        with DisableTorchFunction(), DisableTorchDispatch():
            return tuple(msgspec.structs.replace(holder, every=every) for holder in _search(growing, frame))
    finally:
        local.quiet -= 1


def _search(growing: Mapping[int, Leftover], frame: FrameType | None) -> tuple[Holder, ...]:
    """Walk from the program's names, and return the largest holders of the growing storages."""
    walk = Walk(growing)
    homes: dict[int, str] = {}
    files: dict[str, None] = {}
    for edge, file in _root_names(frame):
        if file:
            files.setdefault(file)
        homes[len(walk.values)] = file
        walk.add(edge)
    walk.go()
    tree = RetainedTree(walk, growing)
    named = {tree.named_holder(position): None for position in tree.growing_values()}
    named = {
        position: None
        for position in named
        if tree.steps[position].bit_count() >= MIN_REPEATS or issubclass(type(walk.values[position]), _SIZED)
    }  # a variable may keep two steps: its value and the one before
    candidates = [(tree.path(at), _make_holder(tree, at, files, homes)) for at in named if at >= 0]
    merged = [holder for holder in _merge_alike(candidates) if holder.bytes >= tree.least_bytes]
    merged.sort(key=lambda holder: (-holder.bytes, holder.name))
    return tuple(merged[:_MAX_HOLDERS])


def _merge_alike(candidates: Iterable[tuple[list[str], Holder]]) -> Iterator[Holder]:
    """Merge holders at the same lines whose names differ in one number or key."""
    groups: defaultdict[tuple[object, ...], list[tuple[list[str], Holder]]] = defaultdict(list)
    for path, holder in candidates:
        at = next((n for n, label in enumerate(path) if _is_numbered(label)), -1)
        shape = (*path[: max(at, 0)], *path[at + 1 :])
        groups[shape if at > 0 else holder.name, at, holder.kind, holder.lines].append((path, holder))
    for members in groups.values():
        first = min((holder for _, holder in members), key=lambda holder: (len(holder.name), holder.name))
        if len(members) > 1:
            each = [holder for _, holder in members]
            first = msgspec.structs.replace(
                first,
                alike=len(members) - 1,
                bytes=sum(holder.bytes for holder in each),
                in_graphs=sum(holder.in_graphs for holder in each),
                entries=sum(holder.entries for holder in each),
                most=sum(holder.most for holder in each) if all(holder.most >= 0 for holder in each) else -1,
            )
        yield first


def _is_numbered(label: str) -> bool:
    return label.startswith("[") or label[1:].isdigit()


def find_owners(
    sizes: Mapping[int, int], frame: FrameType | None
) -> list[tuple[str, tuple[tuple[str, int], ...], list[int]]]:
    """Return the variables that keep the storages whose bytes `sizes` gives by key.

    Each as name ("": none), parts with their bytes, and keys; the most bytes first.
    """
    local.quiet += 1
    try:
        with DisableTorchFunction(), DisableTorchDispatch():
            walk = Walk(sizes)
            for edge, _ in _root_names(frame):
                walk.add(edge)
            walk.go()
            tree = RetainedTree(walk, {key: Leftover(0, size) for key, size in sizes.items()})
            paths = {key: tree.path(walk.leaves[key]) if key in walk.leaves else [] for key in sizes}
    finally:
        local.quiet -= 1
    keys: defaultdict[str, list[int]] = defaultdict(list)
    parts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for key, path in paths.items():
        length = next((n for n, label in enumerate(path[1:], 1) if label[0] == "["), len(path))
        name = "".join(path[:length])
        keys[name].append(key)
        parts[name]["".join(path[: length + 1])] += sizes[key]
    order = sorted(keys, key=lambda name: (not name, -sum(sizes[key] for key in keys[name])))
    return [(name, tuple(parts[name].most_common()), keys[name]) for name in order]


def _root_names(frame: FrameType | None) -> Iterator[tuple[Edge, str]]:
    """Yield the names to begin from: of the program's running functions, of its modules, then of
    libraries."""
    running = frames_of_script(frame)
    users = [caller for caller in running if not library_of(caller.f_code.co_filename)]
    for caller in users:
        for name, value in list(variables(caller).items()):
            yield Edge(name, value), caller.f_code.co_filename
    spaces = [(caller.f_code.co_filename, caller.f_globals) for caller in users]
    spaces += [(file, vars(module)) for file, module in _user_modules()]
    for file, space in spaces:
        for name, value in list(space.items()):
            if not name.startswith("__"):
                yield Edge(name, value), file
    for caller in running:
        if library_of(caller.f_code.co_filename) not in ("", "torch", "python", "gapless"):
            for name, value in list(variables(caller).items()):
                yield Edge(name, value), ""


def _user_modules() -> list[tuple[str, Any]]:
    """Return the program's own modules, with their files."""
    modules = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not is_own(file) and not library_of(file):
            modules.append((file, module))
    return modules


def _make_holder(
    tree: RetainedTree, position: int, files: Mapping[str, None], homes: Mapping[int, str]
) -> Holder:
    """Return the value at `position` as a `Holder`; `homes` gives the file of each variable."""
    path = tree.path(position)
    value = tree.walk.values[position]
    near = [file for file in _near_files(tree, position, homes) if file in files]
    entries, most = _capacity(value)
    if most < 0 and type(value) in _SIZED:
        most = find_bound(path[-1], near, lambda limit: _limit_value(tree, position, limit, files))
        entries = len(value) if most >= 0 else 0
        most = most if most >= entries else -1
    return Holder(
        name="".join(path),
        kind=type(value).__name__,
        lines=_cache_definition(value) or find_additions(path, files, near),
        bytes=tree.bytes[position],
        steps=tree.steps[position].bit_count(),
        in_graphs=tree.in_graphs[position],
        attached=_has_graph(tree, position),
        entries=entries,
        each=tree.bytes[position] // max(len(tree.children[position]), 1) if entries else 0,
        most=most,
    )


def _near_files(tree: RetainedTree, position: int, homes: Mapping[int, str]) -> list[str]:
    """Return the files that can refer to the value at `position` by its name.

    That of the variable that leads to it, and those that define the classes of its holders.
    """
    files = []
    while (parent := tree.parents[position]) >= 0:
        position = parent
        for kind in type(tree.walk.values[position]).__mro__:
            codes = (getattr(method, "__code__", None) for method in list(vars(kind).values()))
            files += [code.co_filename for code in codes if isinstance(code, CodeType)]
    files.append(homes.get(position, ""))
    return list(dict.fromkeys(files))


def _limit_value(tree: RetainedTree, position: int, limit: ast.expr, files: Mapping[str, None]) -> object:
    """Evaluate a limit in the program: a literal, an attribute of a container's holder, or a global."""
    if isinstance(limit, ast.Constant):
        return limit.value
    if isinstance(limit, ast.Attribute):
        while (position := tree.parents[position]) >= 0:
            with contextlib.suppress(AttributeError, TypeError):
                held = object.__getattribute__(tree.walk.values[position], "__dict__")
                if type(held) is dict and limit.attr in held:
                    return held[limit.attr]
    if isinstance(limit, ast.Name):
        for module in list(sys.modules.values()):
            if getattr(module, "__file__", None) in files and limit.id in vars(module):
                return vars(module)[limit.id]
    return None


def _has_graph(tree: RetainedTree, position: int) -> bool:
    """Whether a tensor that keeps memory here has an autograd graph."""
    walk = tree.walk
    pending = [position]
    while pending:
        at = pending.pop()
        value = walk.values[at]
        if issubclass(type(value), torch.Tensor) and not tree.edges[at][1]:
            return value.grad_fn is not None
        pending += tree.children[at][:1]
    return False


def _capacity(value: Any) -> tuple[int, int]:
    """Return a container's number of entries and its maximum (-1: unbounded)."""
    parameters = getattr(value, "cache_parameters", None) if _is_cache(value) else None
    if parameters is not None:
        limit = parameters()["maxsize"]
        return value.cache_info().currsize, -1 if limit is None else limit
    limit = getattr(value, "maxlen", None) if type(value).__name__ == "deque" else None
    return (len(value), limit) if limit is not None else (0, -1)


def _is_cache(value: Any) -> bool:
    return type(value).__module__ == "functools" and hasattr(value, "cache_info")


def _cache_definition(value: Any) -> tuple[SourceLine, ...]:
    """Return where a function is defined whose results `functools` caches."""
    code = getattr(getattr(value, "__wrapped__", None), "__code__", None) if _is_cache(value) else None
    if code is None:
        return ()
    import linecache

    number = code.co_firstlineno
    text = linecache.getline(code.co_filename, number).strip()
    name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    return (SourceLine(file=code.co_filename, line=number, function=name, code=text),)


_REMOVERS = frozenset(("pop", "popleft", "popitem", "remove", "clear"))


def find_bound(name: str, files: Iterable[str], value_of: Callable[[ast.expr], object]) -> int:
    """Return the most entries that `name` can have by a condition in `files`; -1 if there is none.

    Conditions are ``if len(name) > N: name.pop(0)`` and ``if len(name) < N: name.append(x)``. `value_of`
    evaluates an expression, None if unknown.
    """
    for file in files:
        tree = tree_of(file) if mentions(file, name) else None
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, (ast.If, ast.While)):
                for limit, more in _limits(node, name):
                    value = value_of(limit)
                    if type(value) is int and value > 0:
                        return value + more
    return -1


def _limits(node: ast.If | ast.While, name: str) -> Iterator[tuple[ast.expr, int]]:
    """Yield the expression that a condition compares the length with, and how many more entries are
    possible."""
    test = node.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not _is_length(test.left, name):
        return
    operator, limit = test.ops[0], test.comparators[0]
    nodes = [child for statement in node.body for child in ast.walk(statement)]
    functions = [child.func for child in nodes if isinstance(child, ast.Call)]
    methods = {f.attr for f in functions if isinstance(f, ast.Attribute) and refers_to(f.value, name)}
    deletes = any(
        isinstance(child, ast.Delete) and any(refers_to(target, name) for target in child.targets)
        for child in nodes
    )
    if isinstance(operator, (ast.Gt, ast.GtE)) and (methods & _REMOVERS or deletes):
        yield limit, 1
    if isinstance(operator, (ast.Lt, ast.LtE)) and methods & ADDERS:
        yield limit, 1


def _is_length(node: ast.expr, name: str) -> bool:
    """Whether `node` is ``len(name)``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "len"
        and len(node.args) == 1
        and refers_to(node.args[0], name)
    )
