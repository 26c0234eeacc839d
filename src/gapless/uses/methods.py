"""Follow a value through its own attributes and methods."""

from __future__ import annotations

import ast

from gapless.uses import callees
from gapless.uses.followed import ANY, ReachedPlace, ValueWalk
from gapless.uses.source_files import last_name


def use_attribute(flow: ValueWalk, at: ReachedPlace, attribute: ast.Attribute) -> None:
    """Note or follow what is done with the attribute of the value at `at`."""
    parent = at.file.parents.get(attribute)
    call = parent if isinstance(parent, ast.Call) and parent.func is attribute else None
    after: ast.AST = call if call is not None else attribute
    if at.held.path:
        _use_container(flow, at, attribute.attr, call)
    elif attribute.attr in callees.METADATA and not (
        at.held.role in ("value", "copy") and attribute.attr == "dim"
    ):
        if at.held.role == "selection" and attribute.attr in callees.COUNTS:
            flow.add(at, "count", after)
            flow.go(at.move(after, at.held._replace(role="count")))
    elif at.held.role == "count":
        flow.go(at.move(after))
    elif call is None:
        flow.go(at.move(attribute))
    elif at.held.role == "selection":
        _use_selection(flow, at, attribute.attr, call)
    elif attribute.attr in ("to", "cuda") and not _stays_on_cpu(call):
        flow.add(at, "tensor", call)
    elif attribute.attr in callees.FINITE:
        flow.go(at.move(call, at.held._replace(role="finite")))
    elif attribute.attr in ("backward", "requires_grad_"):
        flow.add(at, "undecided", call)
    elif attribute.attr in callees.TO_CPU - {"cpu"}:
        flow.go(at.move(call, at.held.as_number()))
    elif attribute.attr not in callees.APPENDS:
        flow.go(at.move(call))  # a method of a number, an array or a tensor on the CPU: its result


def _use_container(flow: ValueWalk, at: ReachedPlace, name: str, call: ast.Call | None) -> None:
    """Follow a value out of the list or dict that holds it."""
    key = at.held.path[0]
    if call is None:
        if key == name:  # a named tuple
            flow.go(at.move(at.file.parents[at.node], at.held.take_out()))
    elif name == "items":
        flow.go(at.move(call, at.held.take_out().put("#1").put(ANY)))
    elif name == "values":
        flow.go(at.move(call, at.held.take_out().put(ANY)))
    elif name in ("copy", "tolist", "reversed"):
        flow.go(at.move(call))
    elif name in callees.RETURNS_ELEMENTS:
        first = call.args[0] if call.args else None
        if (
            first is None
            or key == ANY
            or not isinstance(first, ast.Constant)
            or key in (str(first.value), f"#{first.value!r}")
        ):
            flow.go(at.move(call, at.held.take_out()))
    elif name in ("mean", "sum", "max", "min", "item", "cpu", "numpy"):
        flow.go(at.move(call, at.held.without_keys()))
    elif name not in (*callees.APPENDS, "clear", "keys", "update", "remove", "sort", "reverse", "rotate"):
        flow.keep(at, "undecided", call)


def _use_selection(flow: ValueWalk, at: ReachedPlace, name: str, call: ast.Call) -> None:
    """Follow a selection through a method."""
    if name in callees.TO_CPU:
        flow.add(at, "selection", call)
        flow.go(at.move(call, at.held._replace(role="value")))
    elif name in callees.SAME_SHAPE:
        flow.go(at.move(call))
    else:
        flow.add(at, "selection", call)


def _stays_on_cpu(call: ast.Call) -> bool:
    """Whether ``.to(…)`` names a dtype or the CPU, and no GPU."""
    texts = [
        ast.unparse(argument)
        for argument in (
            *call.args,
            *(each.value for each in call.keywords if each.arg in ("device", "dtype")),
        )
    ]
    words = [last_name(each) for each in call.args]
    dtypes = ("float", "int", "long", "half", "double", "bool", "bfloat16", "uint8", "dtype", "cpu")
    return (
        bool(texts)
        and all(any(word in text.lower() for word in dtypes) for text in texts)
        and "device" not in words
    )
