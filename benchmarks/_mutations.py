"""Edits of a training script that are wrong on purpose, and edits that are right, made from its syntax tree.

A kind is a generator of edits: each is a tuple of (start, end, text) in bytes of the source.
"""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Callable, Iterator

Span = tuple[int, int, str]
Kind = Callable[["Script"], Iterator[tuple[Span, ...]]]


class Script:
    """A parsed script with the byte spans of its nodes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._begins = [0]
        for line in text.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line.encode()))
        self.data = text.encode()
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return the first byte of `node` and the one behind it."""
        begin = self._begins[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return begin, self._begins[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def source(self, node: ast.AST) -> str:
        begin, end = self.span(node)
        return self.data[begin:end].decode()

    def replace(self, node: ast.AST, text: str) -> Span:
        """Return the edit that puts `text` in the place of `node`."""
        return (*self.span(node), text)

    def walk(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        for node in ast.walk(self.tree):
            if isinstance(node, kinds):
                yield node

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield calls of methods or functions of these names."""
        for node in self.walk(ast.Call):
            assert isinstance(node, ast.Call)
            if isinstance(node.func, ast.Attribute) and node.func.attr in names:
                yield node

    def statements(self, *kinds: type[ast.stmt]) -> Iterator[ast.stmt]:
        """Yield statements of these kinds that stand on lines of their own, inside a loop."""
        for node in self.walk(*kinds):
            if isinstance(node, ast.stmt) and self.loop(node) is not None:
                begin = self._begins[node.lineno - 1]
                if not self.data[begin : self.span(node)[0]].strip():
                    yield node

    def loop(self, node: ast.AST) -> ast.AST | None:
        """Return the innermost loop around `node`."""
        at = self.parents.get(node)
        while at is not None and not isinstance(at, (ast.For, ast.While)):
            at = self.parents.get(at)
        return at

    def indent(self, node: ast.stmt) -> str:
        return " " * node.col_offset


def apply(text: str, edit: tuple[Span, ...]) -> str:
    """Return `text` with the spans of `edit` replaced."""
    data = text.encode()
    for begin, end, new in sorted(edit, reverse=True):
        data = data[:begin] + new.encode() + data[end:]
    return data.decode()


def choose(kind: Kind, text: str, seed: str, number: int) -> list[tuple[Span, ...]]:
    """Return up to `number` edits of a kind that leave `text` compilable and different."""
    edits = list(kind(Script(text)))
    random.Random(seed).shuffle(edits)
    chosen = []
    for edit in edits:
        new = apply(text, edit)
        try:
            compile(new, "<edit>", "exec")
        except SyntaxError:
            continue
        if new != text and len(chosen) < number:
            chosen.append(edit)
    return chosen


# -- wrong --------------------------------------------------------------------------------------------


def renamed_method(pairs: dict[str, str]) -> Kind:
    """Return the kind that calls another method."""

    def kind(script: Script) -> Iterator[tuple[Span, ...]]:
        for call in script.calls(*pairs):
            func = call.func
            assert isinstance(func, ast.Attribute)
            end = script.span(func)[1]
            yield ((end - len(func.attr), end, pairs[func.attr]),)

    return kind


def before_read(text: str) -> Kind:
    """Return the kind that puts a method in front of ``.item()``."""

    def kind(script: Script) -> Iterator[tuple[Span, ...]]:
        for call in script.calls("item"):
            assert isinstance(call.func, ast.Attribute)
            end = script.span(call.func.value)[1]
            yield ((end, end, text),)

    return kind


def around_read(name: str) -> Kind:
    """Return the kind that puts ``.item()`` into a call of `name`."""

    def kind(script: Script) -> Iterator[tuple[Span, ...]]:
        for call in script.calls("item"):
            yield (script.replace(call, f"{name}({script.source(call)})"),)

    return kind


def dropped_call(*names: str) -> Kind:
    """Return the kind that leaves out a statement that calls one of `names`."""

    def kind(script: Script) -> Iterator[tuple[Span, ...]]:
        for call in script.calls(*names):
            parent = script.parents[call]
            if isinstance(parent, ast.Expr):
                yield (script.replace(parent, "pass"),)

    return kind


def dropped_detach(script: Script) -> Iterator[tuple[Span, ...]]:
    for call in script.calls("detach"):
        assert isinstance(call.func, ast.Attribute)
        yield ((script.span(call.func.value)[1], script.span(call)[1], ""),)


def dropped_print(script: Script) -> Iterator[tuple[Span, ...]]:
    for node in script.walk(ast.Expr):
        assert isinstance(node, ast.Expr)
        if _is_print(node.value):
            yield (script.replace(node, "pass"),)


def shorter_print(script: Script) -> Iterator[tuple[Span, ...]]:
    """The last argument of a print is left out."""
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        if _is_print(node) and len(node.args) > 1:
            yield ((script.span(node.args[-2])[1], script.span(node.args[-1])[1], ""),)


def other_number_printed(script: Script) -> Iterator[tuple[Span, ...]]:
    """A printed name is another type of number."""
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        for argument in node.args if _is_print(node) else ():
            if isinstance(argument, ast.Name):
                yield (script.replace(argument, f"({argument.id} * 1.0)"),)


def _is_print(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def swapped_statements(script: Script) -> Iterator[tuple[Span, ...]]:
    """Two neighbours in a loop change places."""
    for node in script.walk(ast.For, ast.While):
        body = node.body  # type: ignore[attr-defined]
        for first, second in itertools.pairwise(body):
            if isinstance(first, ast.Expr | ast.Assign) and isinstance(second, ast.Expr | ast.Assign):
                yield (
                    script.replace(first, script.source(second)),
                    script.replace(second, script.source(first)),
                )


def moved_read(script: Script) -> Iterator[tuple[Span, ...]]:
    """A value is read by a statement of its own, one line later."""
    for node in script.statements(ast.Assign, ast.AugAssign):
        value = node.value  # type: ignore[attr-defined]
        if (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr == "item"
        ):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target  # type: ignore[attr-defined]
            sign = "=" if isinstance(node, ast.Assign) else "+="
            if isinstance(node, ast.AugAssign) and not isinstance(node.op, ast.Add):
                continue
            begin, end = script.span(node)
            text = f"later = {script.source(value.func.value)}\n{script.indent(node)}"
            text += f"{script.source(target)} {sign} float(later)"
            if "int" not in script.source(value):
                yield ((begin, end, text),)


def overwritten_sum(script: Script) -> Iterator[tuple[Span, ...]]:
    """A sum keeps its last term only."""
    for node in script.statements(ast.AugAssign):
        assert isinstance(node, ast.AugAssign)
        if isinstance(node.op, ast.Add):
            yield (script.replace(node, f"{script.source(node.target)} = {script.source(node.value)}"),)


def other_operator(script: Script) -> Iterator[tuple[Span, ...]]:
    signs: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+"}
    for node in script.walk(ast.BinOp):
        assert isinstance(node, ast.BinOp)
        sign = signs.get(type(node.op))
        if sign and not isinstance(node.left, ast.Constant | ast.JoinedStr):
            yield (script.replace(node, f"({script.source(node.left)} {sign} {script.source(node.right)})"),)


def other_condition(script: Script) -> Iterator[tuple[Span, ...]]:
    """A condition is turned around."""
    for node in script.walk(ast.If):
        assert isinstance(node, ast.If)
        if "__name__" not in script.source(node.test):
            yield (script.replace(node.test, f"not ({script.source(node.test)})"),)


def one_pass_less(script: Script) -> Iterator[tuple[Span, ...]]:
    for node in script.walk(ast.For):
        call = node.iter  # type: ignore[attr-defined]
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range":
            last = call.args[1 if len(call.args) > 1 else 0]
            yield (script.replace(last, f"({script.source(last)}) - 1"),)


def scaled_constant(script: Script) -> Iterator[tuple[Span, ...]]:
    """A number in a call is a thousandth larger."""
    for node in script.walk(ast.Constant):
        assert isinstance(node, ast.Constant)
        parent = script.parents[node]
        parent = script.parents[parent] if isinstance(parent, ast.keyword) else parent
        if isinstance(node.value, float) and node.value and isinstance(parent, ast.Call | ast.BinOp):
            yield (script.replace(node, f"{node.value * 1.001!r}"),)


def other_index(script: Script) -> Iterator[tuple[Span, ...]]:
    for node in script.walk(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            yield (script.replace(node.slice, str(node.slice.value + 1)),)


def side_stream(script: Script) -> Iterator[tuple[Span, ...]]:
    """A call runs on another stream, and nothing waits for it."""
    for node in script.statements(ast.Assign):
        assert isinstance(node, ast.Assign)
        if isinstance(node.value, ast.Call):
            begin, end = script.span(node)
            inner = script.source(node).replace("\n", "\n    ")
            text = f"with torch.cuda.stream(torch.cuda.Stream()):\n{script.indent(node)}    {inner}"
            yield ((begin, end, text),)


def early_read(script: Script) -> Iterator[tuple[Span, ...]]:
    """A value is copied without waiting, and read at once."""
    for call in script.calls("item"):
        assert isinstance(call.func, ast.Attribute)
        value = script.source(call.func.value)
        yield (script.replace(call, f'{value}.detach().to("cpu", non_blocking=True).numpy().item()'),)


def drawn_number(script: Script) -> Iterator[tuple[Span, ...]]:
    """A random number is drawn in between."""
    for node in script.statements(ast.Assign, ast.Expr):
        begin, _ = script.span(node)
        yield ((begin, begin, f"torch.rand(1)\n{script.indent(node)}"),)


def left_early(script: Script) -> Iterator[tuple[Span, ...]]:
    for node in script.walk(ast.For):
        last = node.body[-1]  # type: ignore[attr-defined]
        _, end = script.span(last)
        yield ((end, end, f"\n{script.indent(last)}break"),)


def larger_loss(script: Script) -> Iterator[tuple[Span, ...]]:
    """The loss that goes back is a hundredth larger."""
    for call in script.calls("backward"):
        assert isinstance(call.func, ast.Attribute)
        value = script.source(call.func.value)
        yield (script.replace(call.func.value, f"({value} * 1.01)"),)


def swapped_arguments(script: Script) -> Iterator[tuple[Span, ...]]:
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        if len(node.args) == 2 and all(isinstance(each, ast.Name) for each in node.args):
            first, second = node.args
            yield (
                script.replace(first, script.source(second)),
                script.replace(second, script.source(first)),
            )


def failed_at_the_end(script: Script) -> Iterator[tuple[Span, ...]]:
    end = len(script.data)
    yield ((end, end, "\nraise SystemExit(3)\n"),)


def other_seed(script: Script) -> Iterator[tuple[Span, ...]]:
    for call in script.calls("manual_seed"):
        yield (script.replace(call.args[0], f"{script.source(call.args[0])} + 1"),)


WRONG: dict[str, Kind] = {
    "another reduction": renamed_method({"mean": "sum", "sum": "mean", "argmax": "argmin", "max": "min"}),
    "another function": renamed_method({"relu": "tanh", "tanh": "sigmoid", "exp": "sin"}),
    "detach left out": dropped_detach,
    "zero_grad left out": dropped_call("zero_grad"),
    "step left out": dropped_call("step", "clip_grad_norm_", "clip_grad_value_", "backward"),
    "evaluation mode": renamed_method({"train": "eval", "eval": "train"}),
    "statements in another order": swapped_statements,
    "print left out": dropped_print,
    "value not printed": shorter_print,
    "float for int": other_number_printed,
    "int for float": around_read("int"),
    "half precision of a value": before_read(".bfloat16()"),
    "loss a hundredth larger": larger_loss,
    "sync moved": moved_read,
    "sum overwritten": overwritten_sum,
    "another operator": other_operator,
    "condition turned around": other_condition,
    "a pass less": one_pass_less,
    "loop left early": left_early,
    "constant a thousandth larger": scaled_constant,
    "another index": other_index,
    "arguments swapped": swapped_arguments,
    "side stream, a race": side_stream,
    "read too early, a race": early_read,
    "random number drawn": drawn_number,
    "another seed": other_seed,
    "crash": renamed_method({"item": "numpy"}),
    "another exit status": failed_at_the_end,
}  # fmt: skip


# -- right --------------------------------------------------------------------------------------------


def list_of_values(script: Script) -> Iterator[tuple[Span, ...]]:
    """``tolist()`` of a scalar returns what ``item()`` returns."""
    for call in script.calls("item"):
        assert isinstance(call.func, ast.Attribute)
        yield (script.replace(call, f"{script.source(call.func.value)}.reshape(()).tolist()"),)


def later_accumulator(script: Script) -> Iterator[tuple[Span, ...]]:
    """A sum stays on the GPU in float64, and is read where it is used."""
    for node in script.statements(ast.AugAssign):
        assert isinstance(node, ast.AugAssign)
        value = node.value
        if not (isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name)):
            continue
        if not (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr == "item"
        ):
            continue
        if not value.args and any(word in script.source(value) for word in ("loss", "err")):
            name = node.target.id
            reads = [
                script.replace(use, f"float({name})")
                for use in script.walk(ast.Name)
                if isinstance(use, ast.Name) and use.id == name and isinstance(use.ctx, ast.Load)
            ]
            yield (script.replace(value, f"{script.source(value.func.value)}.detach().double()"), *reads)


def named_parts(script: Script) -> Iterator[tuple[Span, ...]]:
    """The argument of a call gets a name first."""
    for node in script.statements(ast.Assign):
        assert isinstance(node, ast.Assign)
        value = node.value
        if not (isinstance(value, ast.Call) and value.args and isinstance(value.args[0], ast.Call)):
            continue
        function = value.func.value if isinstance(value.func, ast.Attribute) else value.func
        if isinstance(function, ast.Name):  # nothing is evaluated before the argument
            begin, _ = script.span(node)
            text = f"part = {script.source(value.args[0])}\n{script.indent(node)}"
            yield ((begin, begin, text), script.replace(value.args[0], "part"))


def device_by_name(script: Script) -> Iterator[tuple[Span, ...]]:
    for call in script.calls("to"):
        if len(call.args) == 1 and not call.keywords:
            end = script.span(call)[1] - 1
            yield ((end, end, ", non_blocking=False"),)


def default_named(script: Script) -> Iterator[tuple[Span, ...]]:
    """A default of torch is written down."""
    for call in script.calls("zero_grad"):
        if not call.args and not call.keywords:
            end = script.span(call)[1] - 1
            yield ((end, end, "set_to_none=True"),)


def commented(script: Script) -> Iterator[tuple[Span, ...]]:
    for node in script.statements(ast.Assign):
        begin, _ = script.span(node)
        yield ((begin, begin, f"# a remark\n{script.indent(node)}"),)


def parenthesized(script: Script) -> Iterator[tuple[Span, ...]]:
    """A value stands in parentheses over several lines."""
    for node in script.statements(ast.Assign):
        assert isinstance(node, ast.Assign)
        if not isinstance(node.value, ast.Tuple):
            yield (script.replace(node.value, f"(\n{script.source(node.value)}\n)"),)


def read_once(script: Script) -> Iterator[tuple[Span, ...]]:
    """Two values read by one statement are copied together; both are float32."""
    for node in script.walk(ast.Tuple):
        assert isinstance(node, ast.Tuple)
        reads = [
            each.func.value
            for each in node.elts
            if isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.func.attr == "item"
        ]
        if len(reads) == len(node.elts) > 1:
            inner = ", ".join(f"{script.source(read)}.detach()" for read in reads)
            yield (script.replace(node, f"tuple(torch.stack([{inner}]).tolist())"),)


RIGHT: dict[str, Kind] = {
    "sum kept on the GPU": later_accumulator,
    "two reads in one": read_once,
    "tolist for item": list_of_values,
    "argument named": named_parts,
    "default of a copy written down": device_by_name,
    "default of zero_grad written down": default_named,
    "comment": commented,
    "parentheses": parenthesized,
}
