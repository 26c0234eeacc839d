"""Follow a value into the calls that it is an argument of."""

from __future__ import annotations

import ast

from gapless.uses import callees
from gapless.uses.followed import ANY, FollowedValue, ReachedPlace, ValueWalk
from gapless.uses.meaning import is_tensor
from gapless.uses.source_files import called_name, root_name


def use_argument(flow: ValueWalk, at: ReachedPlace, call: ast.Call, keyword: str | None) -> None:
    """Note or follow what `call` does with its argument at `at`, which is a `keyword` if that is given."""
    name = called_name(call)
    if name in callees.LOOKS:
        flow.keep(at, "undecided", call)
        return
    if _use_builtin(flow, at, call, name) or _use_well_known(flow, at, call, name, keyword):
        return
    _use_project(flow, at, call, keyword)


def _use_builtin(flow: ValueWalk, at: ReachedPlace, call: ast.Call, name: str) -> bool:
    """Follow an argument of one of Python's own functions; False if it is none."""
    plain = isinstance(call.func, ast.Name)
    if name in callees.FINITE:
        flow.go(at.move(call, at.held.without_keys()._replace(role="finite")))
    elif root_name(call.func) in ("math", "cmath", "operator", "statistics"):
        flow.go(at.move(call, at.held.without_keys()))
    elif not plain or flow.calls.callees(at.file, call):
        return False
    elif name in ("any", "all", "bool"):
        flow.go(at.move(call, at.held.without_keys().answer("compared")))
    elif name == "len":
        if at.held.role == "selection" and not at.held.path:
            flow.add(at, "count", call)
            flow.go(at.move(call, at.held._replace(role="count")))
    elif name == "range":
        flow.add(at, "range", call)
    elif name == "slice":
        flow.add(at, "slice", call)
    elif name in ("min", "max") and _keeps_best(at, call):
        flow.add(at, "best", call)
    elif name in callees.THROUGH:
        flow.go(at.move(call, at.held.as_number()))
    elif name == "dict":
        flow.go(at.move(call))
    elif name in callees.SEQUENCES or name == "map":
        flow.go(at.move(call, at.held if at.held.path and at.held.path[0] == ANY else _any_place(at)))
    elif name in ("zip", "enumerate"):
        place = "#1" if name == "enumerate" else f"#{_position(call, at.node)}"
        inner = at.held.take_out() if at.held.path else at.held
        flow.go(at.move(call, inner.put(place).put(ANY)))
    else:
        return False
    return True


def _any_place(at: ReachedPlace) -> FollowedValue:
    return at.held.take_out().put(ANY) if at.held.path else at.held


def _keeps_best(at: ReachedPlace, call: ast.Call) -> bool:
    """Whether ``best = max(best, value)``."""
    statement = at.file.parents.get(call)
    rest = {ast.unparse(argument) for argument in call.args if argument is not at.node}
    return isinstance(statement, ast.Assign) and any(
        ast.unparse(target) in rest for target in statement.targets
    )


def _position(call: ast.Call, node: ast.AST) -> int:
    return next((place for place, argument in enumerate(call.args) if argument is node), 0)


def _use_well_known(
    flow: ValueWalk, at: ReachedPlace, call: ast.Call, name: str, keyword: str | None
) -> bool:
    """Follow an argument of a well-known function of torch, NumPy, loggers, containers; False if none."""
    root, method = root_name(call.func), isinstance(call.func, ast.Attribute)
    torch = root in ("torch", "F", "nn") and "distributed" not in ast.unparse(call.func)
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if name in ("step", "reset") and owner is not None and "env" in ast.unparse(owner).lower():
        flow.add(at, "environment", call)  # the project's own, too: its state is on the CPU
    elif not torch and flow.calls.callees(at.file, call):
        return False
    elif torch and name == "save":
        flow.add(at, "checkpoint", call)
    elif at.held.role == "selection" and not at.held.path and (torch or method):
        flow.add(at, "selection", call)
    elif name in callees.TEXTS and not torch:
        flow.keep(at, "show", call)
        flow.go(at.move(call, at.held.as_text()))
    elif name in callees.SHOWS and not (torch or root in ("np", "numpy")):
        flow.add(at, "show", call)
    elif name in callees.APPENDS and owner is not None and not torch and not _adds_to_tensor(at, name, owner):
        flow.add(at, "append", call)
        held = at.held if name == "extend" else at.held.put(ANY)
        flow.put(at.move(at.node, held), owner, call)
    elif root in ("np", "numpy") or _computes_with_arrays(at, root):
        _use_array(flow, at, call, name)
    elif _is_size(at, call, name, torch, method):
        flow.add(at, "size", call)
    elif (torch or method) and (name in callees.NUMBERS or keyword in callees.NUMBER_OPTIONS):
        flow.add(at, "library", call)
    elif (
        torch
        or (owner is not None and (name in callees.TENSOR_METHODS or is_tensor(at.file, owner)))
        or name in callees.RETENSOR
    ):
        if torch and _is_only_tensor(at, call):
            flow.keep(at, "tensor", call)
            flow.go(at.move(call))  # its result is on the CPU, too
        else:
            flow.add(at, "tensor", call)
    else:
        return False
    return True


def _use_array(flow: ValueWalk, at: ReachedPlace, call: ast.Call, name: str) -> None:
    """Note what a function of NumPy, or of a library like it, does; follow the results of NumPy's own."""
    if name in ("save", "savez", "savetxt"):
        flow.add(at, "checkpoint", call)
        return
    flow.add(at, "numpy", call)
    if not _computes_with_arrays(at, root_name(call.func)):
        flow.go(at.move(call, at.held.without_keys()))


def _computes_with_arrays(at: ReachedPlace, root: str) -> bool:
    """Whether `root`, a module or a function, comes from a library that computes with NumPy's arrays."""
    module, _ = at.file.imports.get(root, ("", ""))
    return module.partition(".")[0] in callees.ARRAY_LIBRARIES


def _is_only_tensor(at: ReachedPlace, call: ast.Call) -> bool:
    """Whether a function of torch gets a tensor on the CPU, and no other that may be on the GPU."""
    rest = [*call.args, *(keyword.value for keyword in call.keywords)]
    return (
        at.held.role == "copy"
        and not at.held.path
        and not any(keyword.arg == "device" for keyword in call.keywords)
        and all(argument is at.node or _has_no_tensor(argument) for argument in rest)
    )


def _has_no_tensor(node: ast.expr) -> bool:
    """Whether the expression is made of constants and attributes of torch: ``-1``, ``torch.long``."""
    return all(
        isinstance(each, (ast.Constant, ast.UnaryOp, ast.unaryop, ast.Attribute, ast.expr_context))
        or (isinstance(each, ast.Name) and each.id == "torch")
        for each in ast.walk(node)
    )


def _adds_to_tensor(at: ReachedPlace, name: str, owner: ast.expr) -> bool:
    """Whether a method of this name computes: tensors have an ``add``, but nothing is appended to them."""
    return name in ("add", "put") and is_tensor(at.file, owner)


def _is_size(at: ReachedPlace, call: ast.Call, name: str, torch: bool, method: bool) -> bool:
    """Whether the argument is a size of what the call makes."""
    if name not in callees.SIZES or not (
        torch or (method and root_name(call.func) not in callees.NOT_CUDA_TENSORS)
    ):
        return False
    place = _position(call, at.node)
    if name in ("full", "new_full"):
        return place == 0 and at.node in call.args
    if name == "all_to_all_single":
        return at.node not in call.args[:2]
    return not (torch and name in callees.TENSOR_FIRST and place == 0 and at.node in call.args)


def _use_project(flow: ValueWalk, at: ReachedPlace, call: ast.Call, keyword: str | None) -> None:
    """Follow an argument into the project's function that is called."""
    reached = flow.calls.callees(at.file, call)
    if not reached and (klass := flow.calls.class_of_call(at.file, call)) is not None:
        _use_field(flow, at, call, keyword, *klass)
        return
    if not reached:
        flow.add(at, "library", call)
        return
    for callee in reached:
        arguments = callee.function.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        positional = names[1:] if callee.bound else names
        every = {*names, *(each.arg for each in arguments.kwonlyargs)}
        place = _position(call, at.node)
        starred = any(isinstance(each, ast.Starred) for each in call.args[: place + 1])
        if keyword in every:
            flow.enter(at, call, str(keyword), callee.file, callee.function)
        elif keyword is None and at.node in call.args and not starred and place < len(positional):
            flow.enter(at, call, positional[place], callee.file, callee.function)
        else:
            flow.add(at, "library", call)


def _use_field(
    flow: ValueWalk, at: ReachedPlace, call: ast.Call, keyword: str | None, file: object, klass: ast.ClassDef
) -> None:
    """Follow a value into a field of a dataclass or a named tuple."""
    fields = [
        each.target.id
        for each in klass.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    place = _position(call, at.node)
    field = keyword or (fields[place] if place < len(fields) else None)
    loads = at.file.attributes.get(field, []) if field in fields and field is not None else []
    if not loads or at.hops >= 3 or len(loads) > 12:
        flow.add(at, "stored", call)
    for load in loads if len(loads) <= 12 else ():
        flow.go(ReachedPlace(at.file, load, at.hops + 1, at.held))
