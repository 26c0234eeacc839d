"""Reconstruct the `Entry` of an operator in a real profile from its recorded arguments.

A profile records an operator's arguments but not its results. For most operators these follow from family
and arguments; for the others no entry is returned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from gapless.analyze.kernel_times.families import ATTENTION, CONVOLUTION, MATMUL, UNKNOWN, family_of, stem_of
from gapless.model.programme import Entry, Shape
from gapless.trace.arguments import Arguments

_TYPES = {
    "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "double": "float64",
    "long int": "int64", "long": "int64", "long long": "int64", "int": "int32", "short": "int16",
    "short int": "int16", "bool": "bool", "unsigned char": "uint8", "signed char": "int8",
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
}  # fmt: skip
"""Types of tensors; whatever else an argument is, it is none."""
_NUMBERED = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    11: "bool", 15: "bfloat16",
}  # fmt: skip
"""Types as the numbers by which profiles tell an argument `dtype`."""
_FLAGS = frozenset(
    "eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf isfinite any all".split()  # noqa: SIM905
)
_BYTES = {"int64": 8, "float64": 8, "int32": 4, "float32": 4, "int16": 2, "float16": 2, "bfloat16": 2}


def entry(name: str, arguments: Arguments, tf32: bool = False) -> Entry | None:
    """Return the work of operator `name` with these arguments; None if they do not determine it.

    `tf32` says that its products in fp32 ran as TF32.

    >>> arguments = Arguments(((2, 3), (3, 4)), ("float", "float"))
    >>> entry("aten::mm", arguments).outputs
    ((2, 4),)
    """
    family, stem = family_of(name), stem_of(name)
    if family == UNKNOWN or any(kind in ("TensorList", "OptionalTensorList") for kind in arguments.types):
        return None  # the types of what is in lists are not recorded
    if nested(name, arguments.types):
        return None
    tensors = [
        (tuple(size), _TYPES[kind])
        for size, kind in zip(arguments.sizes, arguments.types, strict=False)
        if kind in _TYPES and not any(isinstance(side, tuple) for side in size)
    ]
    if not tensors:
        return None
    if stem == "cudnn_convolution_backward":  # of before torch 1.11: the input comes first
        tensors[:2] = tensors[1::-1]
    shapes = [shape for shape, _ in tensors]
    outputs = _outputs(family, stem, shapes, arguments)
    if outputs is None:
        return None
    kinds = [kind for _, kind in tensors]
    own = next((kind for kind in kinds if "float" in kind), kinds[0])
    writes = sum(map(math.prod, outputs)) * _size(_written(stem, kinds, arguments))
    # What is written anew is not read, and of a table no more than what is looked up.
    taken = tensors[1:] if stem == "copy_" or family == "gather" else tensors
    return Entry(
        name=name,
        dtype=own if family in (MATMUL, CONVOLUTION, ATTENTION) else kinds[0],
        inputs=tuple(shapes[:8]),
        outputs=tuple(outputs),
        tensors=len(shapes),
        elements=sum(map(math.prod, shapes)),
        reads=sum(math.prod(shape) * _size(kind) for shape, kind in taken)
        + (writes if family == "gather" else 0),
        writes=writes,
        tf32=tf32,
    )


def nested(name: str, types: Sequence[str]) -> bool:
    """Whether a nested tensor is among the arguments of these types: nothing is recorded of such.

    >>> nested("aten::add", ("", "float", "Scalar"))
    True
    """
    needed = 2 if stem_of(name).rstrip("_") in ("add", "sub", "mul", "div") else 1
    return "" in types[:needed]


def _written(stem: str, kinds: Sequence[str], arguments: Arguments) -> str:
    """Return the type of what the operator writes."""
    if stem.endswith("_") and not stem.startswith("_"):
        return kinds[0]
    if stem in _FLAGS:
        return "bool"
    if stem in ("_softmax", "_log_softmax") and arguments.values[2:3] == ("True",):
        return "float32"  # `half_to_float`
    if stem == "_to_copy":
        return _NUMBERED.get(_value(arguments.values[1]), kinds[0])
    return max(kinds, key=lambda kind: ("float" in kind, _size(kind)))


def _size(kind: str) -> int:
    return _BYTES.get(kind, 1)


def _outputs(family: str, stem: str, shapes: Sequence[Shape], arguments: Arguments) -> list[Shape] | None:
    """Return the shapes of the operator's results; None if they are unknown."""
    if stem.endswith("_") and not stem.startswith("_"):
        return [shapes[0]]  # in place
    rule = _RULES.get(stem) or _FAMILIES.get(family)
    return rule(list(shapes), arguments) if rule is not None else None


Rule = Callable[[list[Shape], Arguments], list[Shape] | None]


def _alike(shapes: list[Shape], arguments: Arguments) -> list[Shape]:
    """One result, as large as the largest input."""
    return [max(shapes, key=math.prod)]


def _conversion_shapes(shapes: list[Shape], arguments: Arguments) -> list[Shape] | None:
    """One result, as large as the first input, if the new type is recorded."""
    return shapes[:1] if len(arguments.values) > 1 else None


def _broadcast(shapes: list[Shape], arguments: Arguments) -> list[Shape]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return [tuple(0 if 0 in sides else max(sides) for sides in zip(*padded, strict=True))]


def _product(shapes: list[Shape], arguments: Arguments) -> list[Shape] | None:
    """The product of the last two inputs."""
    factors = [shape for shape in shapes if shape][-2:]
    if len(factors) < 2:
        return None
    a, b = factors
    return [(*a[:-1], *((b[-1],) if len(b) > 1 else ()))]


def _first_product(shapes: list[Shape], arguments: Arguments) -> list[Shape] | None:
    return _product(shapes[:2], arguments)


def _convolution(shapes: list[Shape], arguments: Arguments) -> list[Shape] | None:
    """``convolution(input, weight, bias, stride, padding, dilation, transposed, …)``."""
    source, weight = shapes[:2] if len(shapes) > 1 else ((), ())
    if len(source) < 3 or len(source) != len(weight):
        return None
    lists = [_value(text) for text in arguments.values[3:7]]
    if (
        len(lists) < 4
        or not all(isinstance(values, list) and values for values in lists[:3])
        or lists[3] is True
    ):
        return None
    sides = []
    for place, (side, window) in enumerate(zip(source[2:], weight[2:], strict=True)):
        stride, padding, dilation = (values[min(place, len(values) - 1)] for values in lists[:3])
        if stride < 1:
            return None
        sides.append((side + 2 * padding - dilation * (window - 1) - 1) // stride + 1)
    return [(source[0], weight[0], *sides)]


def _convolution_backward(shapes: list[Shape], arguments: Arguments) -> list[Shape] | None:
    """The gradients of the input and of the weight, as far as both are wanted."""
    if len(shapes) < 3:
        return None
    wanted = _value(arguments.values[-1]) if arguments.values else None
    wanted = wanted[:2] if isinstance(wanted, list) and len(wanted) == 3 else [True, True]
    return [shape for shape, is_wanted in zip(shapes[1:3], wanted, strict=True) if is_wanted] or None


def _reduction(shapes: list[Shape], arguments: Arguments) -> list[Shape]:
    """A reduction over the dimensions listed in the second argument, or over all."""
    whole = shapes[0]
    listed = next((value for value in map(_value, arguments.values[1:3]) if value is not None), None)
    over = listed if isinstance(listed, list) else [listed] if type(listed) is int else []
    gone = {dimension % len(whole) for dimension in over if type(dimension) is int and whole}
    return [tuple(side for place, side in enumerate(whole) if place not in gone)] if gone else [()]


def _scalar(shapes: list[Shape], arguments: Arguments) -> list[Shape]:
    return [()]


def _looked_up(shapes: list[Shape], arguments: Arguments) -> list[Shape] | None:
    """Rows of the first input at the indices in the second."""
    return [(*shapes[1], *shapes[0][1:])] if len(shapes) > 1 else None


def _second(shapes: list[Shape], arguments: Arguments) -> list[Shape] | None:
    return [shapes[1]] if len(shapes) > 1 else None


def _index_select_shapes(shapes: list[Shape], arguments: Arguments) -> list[Shape] | None:
    """``index_select(self, dim, index)``."""
    at = _value(arguments.values[1]) if len(arguments.values) > 1 else None
    if type(at) is not int or len(shapes) < 2 or not -len(shapes[0]) <= at < len(shapes[0]):
        return None
    sides = list(shapes[0])
    sides[at] = math.prod(shapes[1])
    return [tuple(sides)]


def _rows(shapes: list[Shape], arguments: Arguments) -> list[Shape] | None:
    """``embedding_dense_backward(gradient, indices, rows, …)``."""
    count = _value(arguments.values[2]) if len(arguments.values) > 2 else None
    return [(count, shapes[0][-1])] if type(count) is int and shapes[0] else None


def _with_mask(shapes: list[Shape], arguments: Arguments) -> list[Shape]:
    return [shapes[0], (-(-math.prod(shapes[0]) // 4),)]  # a byte for each element


def _attention_shapes(shapes: list[Shape], arguments: Arguments) -> list[Shape] | None:
    return [shapes[0]] if len(shapes) > 2 else None


def _attended_backward(shapes: list[Shape], arguments: Arguments) -> list[Shape] | None:
    return list(shapes[1:4]) if len(shapes) > 3 else None


def _value(text: str) -> Any:
    """The number, flag or list in `text`; None where there is none."""
    try:
        return json.loads(text.lower())
    except ValueError:
        return None


_FAMILIES: dict[str, Rule] = {
    MATMUL: _product, CONVOLUTION: _convolution, ATTENTION: _attention_shapes, "pointwise": _broadcast,
    "layer norm": _alike, "softmax": _alike, "batch norm": _alike, "random": _alike, "scan": _alike,
    "reduction": _reduction,
}  # fmt: skip
_BACKWARD_ATTENTION = (
    "_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward",
)  # fmt: skip
_RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "bmm", "mv", "matmul", "_scaled_mm", "_int_mm"), _first_product),
    **dict.fromkeys(("convolution_backward", "cudnn_convolution_backward"), _convolution_backward),
    **dict.fromkeys(_BACKWARD_ATTENTION, _attended_backward),
    **dict.fromkeys(("clone", "contiguous", "sort", "argsort", "tril", "triu", "roll", "flip"), _alike),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward", "cross_entropy_loss"), _alike),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "mse_loss", "l1_loss", "dot"), _scalar),
    "native_dropout": _with_mask,
    "_to_copy": _conversion_shapes,
    "embedding": _looked_up,
    "index_select": _index_select_shapes,
    "gather": _second,
    "embedding_dense_backward": _rows,
}
