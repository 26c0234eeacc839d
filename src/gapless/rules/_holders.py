"""Advice on names that keep tensors of step after step: the program's own line, corrected."""

from __future__ import annotations

import ast

from gapless.model.memory import Holder
from gapless.model.wording import binary_size

_MAX_LINE_CHARS = 80
"""Longer lines are not quoted."""
_CACHE_TYPE = "_lru_cache_wrapper"
_MAIN_SHARE = 0.5
"""Share of the bytes that must be in graphs for detaching to be the whole remedy."""


def describe_holder(holder: Holder) -> str:
    """Return ``the list `self.bank` ``."""
    words = {"Tensor": "tensor", _CACHE_TYPE: "cache of", "ndarray": "array"}
    also = f" and {holder.alike:,} more like it" if holder.alike else ""
    return f"the {words.get(holder.kind, holder.kind)} `{holder.name}`{also}"


def is_kept_by_graphs(holder: Holder) -> bool:
    """Whether autograd graphs keep most of the bytes."""
    return holder.in_graphs > _MAIN_SHARE * holder.bytes


def short_advice(holder: Holder, evaluates: bool = False) -> str:
    """Return the remedy in a few words; `evaluates`: the line that adds calls a model in evaluation."""
    if evaluates and is_kept_by_graphs(holder):
        return "`torch.no_grad()` around the forward pass"
    line = _detach_in_line(holder)
    if holder.kind == _CACHE_TYPE:
        return f"bound the cache: `lru_cache(maxsize=…)` on `{holder.name}`"
    if is_kept_by_graphs(holder):
        if line:
            return f"`{line}`"
        name = holder.name
        return (
            f"`{name} = {name}.detach()` in each step"
            if holder.kind == "Tensor"
            else f"detach what `{name}` keeps"
        )
    name = _name_with_others(holder)
    return f"`{line}`, and bound {name}" if line else f"bound {name}, or clear {_pronoun(holder)}"


def advise_holder(holder: Holder, evaluates: bool = False) -> str:
    """Return the remedy in a sentence; `evaluates`: the line that adds calls a model in evaluation."""
    if evaluates and is_kept_by_graphs(holder):
        return (
            "run the forward pass under `torch.no_grad()`, or `torch.inference_mode()`: autograd graphs keep "
            "its activations, and no backward pass uses them"
        )
    line = _detach_in_line(holder)
    if holder.kind == _CACHE_TYPE:
        return (
            f"give the cache of `{holder.name}` a bound (`maxsize=…`), or return tensors on the CPU: it "
            "keeps every result"
        )
    if is_kept_by_graphs(holder):
        how = f"write `{line}`" if line else f"detach what `{holder.name}` keeps (`x.detach()`)"
        return (
            f"{how}: its autograd graph keeps the activations of every step, and no backward pass through "
            "them follows"
        )
    detach = f"write `{line}`, and " if line else ""
    return (
        f"{detach}bound {_name_with_others(holder)} (`deque(maxlen=…)`, or clear "
        f"{_pronoun(holder)} after use), or move "
        f"{_pronoun(holder)} to the CPU now and then, in one copy"
    )


def _name_with_others(holder: Holder) -> str:
    return f"`{holder.name}`" + (f" and the {holder.alike:,} like it" if holder.alike else "")


def _pronoun(holder: Holder) -> str:
    return "them" if holder.alike else "it"


def describe_full_size(holder: Holder) -> str:
    """Describe how much memory a bounded container still takes until it is full."""
    return (
        f"`{holder.name}` holds at most {holder.most:,} entries: {binary_size(holder.in_the_end)} more until "
        "it is full"
    )


def _detach_in_line(holder: Holder) -> str:
    """Return the adding line with the added value detached; "" if the line is not of a simple form."""
    if holder.line is None or not (is_kept_by_graphs(holder) or holder.attached):
        return ""
    try:
        tree = ast.parse(holder.line.code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and holder.kind == "Tensor":
            return _if_short(f"{ast.unparse(node.target)} += {_detach_expression(node.value)}")
        if isinstance(node, ast.Call) and _is_adding_call(node, holder):
            before = "".join(f"{ast.unparse(argument)}, " for argument in node.args[:-1])
            return _if_short(f"{ast.unparse(node.func)}({before}{_detach_expression(node.args[-1])})")
        if isinstance(node, ast.Assign) and _is_entry(node, holder):
            return _if_short(f"{ast.unparse(node.targets[0])} = {_detach_expression(node.value)}")
    return ""


def _detach_expression(value: ast.expr) -> str:
    text = ast.unparse(value)
    simple = isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    return f"{text}.detach()" if simple else f"({text}).detach()"


def _is_adding_call(call: ast.Call, holder: Holder) -> bool:
    last = holder.name.replace("[", ".[").rpartition(".")[2]
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in ("append", "appendleft", "add")
        and bool(call.args)
        and not call.keywords
        and (last in ast.unparse(call.func.value).replace("'", '"'))
    )


def _is_entry(node: ast.Assign, holder: Holder) -> bool:
    return isinstance(node.targets[0], ast.Subscript) and holder.kind in (
        "dict",
        "defaultdict",
        "OrderedDict",
        "ndarray",
    )


def _if_short(text: str) -> str:
    return text if len(text) <= _MAX_LINE_CHARS else ""
