"""`Input`: the arguments of one call, from any form in which the user gives them."""

from __future__ import annotations

import copy
import inspect
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from gapless.errors import UsageError
from gapless.prove import tree

MAX_INPUTS = 8
"""Inputs taken from an iterable without end, such as a DataLoader."""

HOW_TO_GIVE_INPUTS = (
    "the inputs of the calls: a function that returns the arguments of one call (a tensor, a tuple, a dict "
    "of keywords, or a tuple and a dict), or yields the arguments of several calls"
)

Origin = Literal["given", "added", "edge"]
"""Where an input comes from: the user's inputs, the user's added cases, or the edge cases."""


@dataclass(frozen=True)
class Input:
    """The arguments of one call. `names` are the parameters that `args` go to, used in messages."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...] = ()
    made: Origin = "given"
    dtype: torch.dtype | None = None
    """Type that modules are cast to for this input; None leaves them."""
    lenient: bool = False
    """Whether differing gradients are only noted, as the input contains NaN or infinities."""

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors in the arguments, by path."""
        return [pair for name, value in self.arguments() for pair in tree.tensors(value, name)]

    def arguments(self) -> Iterator[tuple[str, Any]]:
        """Yield each argument with the name of its parameter."""
        for position, value in enumerate(self.args):
            has_name = position < len(self.names)
            yield (self.names[position] if has_name else f"argument {position + 1}"), value
        yield from self.kwargs.items()

    def map_tensors(self, visit: tree.Visit, **changes: Any) -> Input:
        """Return a copy with ``visit(path, tensor)`` in place of each tensor."""
        named = list(self.arguments())
        mapped_values = [tree.map_tensors(value, name, visit) for name, value in named]
        count = len(self.args)
        kwargs = dict(zip(self.kwargs, mapped_values[count:], strict=True))
        return replace(self, args=tuple(mapped_values[:count]), kwargs=kwargs, **changes)

    def fresh(self, kept: Mapping[int, Any] = types.MappingProxyType({})) -> Input:
        """Return a copy whose tensors can be changed; shared memory stays shared, strides stay.

        `kept` are copies made before, by the `id` of the original.
        """
        args, kwargs = copy.deepcopy((self.args, self.kwargs), dict(kept))
        return replace(self, args=args, kwargs=kwargs)

    def objects(self) -> list[Any]:
        """Return the leaves that may keep state between calls: neither tensors nor arrays."""
        return [
            leaf
            for name, value in self.arguments()
            for _, leaf in tree.leaves(value, name)
            if not isinstance(detach_leaf, torch.Tensor) and type(detach_leaf).__module__ != "numpy"
        ]


def detach_leaf(path: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` detached from its graph, so that gradients end in it."""
    if tensor.is_leaf:
        return tensor
    return tensor.detach().requires_grad_(tensor.requires_grad)


def inputs_from(
    source: Any, target: Callable[..., Any], seed: int, names: tuple[str, ...] = (), **keywords: Any
) -> list[Input]:
    """Return the inputs in `source`, for calls of `target`.

    `source` is a callable (which receives `keywords`), an iterable of inputs, or one input. `names` are
    parameters whose floating tensors are made to require gradients.

    Raises:
        UsageError: there is no input in it, or a name matches no tensor.
    """
    torch.manual_seed(seed)
    value = source(**keywords) if callable(source) else source
    if isinstance(value, (torch.Tensor, tuple, Mapping)):
        values = [value]
    elif hasattr(value, "__iter__") and not isinstance(value, (str, bytes)):
        values = list(itertools.islice(value, MAX_INPUTS))
    else:
        raise UsageError(f"the inputs are of type {_describe(value)}: give {HOW_TO_GIVE_INPUTS}")
    if not values:
        raise UsageError(f"the inputs are empty: give {HOW_TO_GIVE_INPUTS}")
    several = len(values) > 1
    inputs = [
        _make_input(item, target, f"input {number}" if several else "as given").map_tensors(detach_leaf)
        for number, item in enumerate(values, 1)
    ]
    return [require_gradients(call_input, names) for call_input in inputs]


def added_from(
    source: Any, target: Callable[..., Any], seed: int, names: tuple[str, ...] = ()
) -> list[Input]:
    """Return the user's added cases: `source` is a dict from names to inputs, or returns one.

    Raises:
        UsageError: it is something else.
    """
    torch.manual_seed(seed)
    named_values = source() if callable(source) else source
    if not isinstance(named_values, Mapping):
        raise UsageError(
            f"the added cases are of type {_describe(named_values)}: give a dict from names to inputs"
        )
    inputs = [
        _make_input(value, target, str(name), "added").map_tensors(detach_leaf)
        for name, value in named_values.items()
    ]
    return [require_gradients(call_input, names) for call_input in inputs]


def _make_input(value: Any, target: Callable[..., Any], name: str, origin: Origin = "given") -> Input:
    parameters = parameter_names(target)
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        args = tuple(value)
        if len(args) == 2 and isinstance(args[0], tuple) and _is_keywords(args[1]):
            args, kwargs = args[0], dict(args[1])
    elif _is_keywords(value) and set(value) <= set(parameters):
        args, kwargs = (), dict(value)
    else:
        args = (value,)
    return Input(name, args, kwargs, parameters, origin)


def _is_keywords(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def parameter_names(target: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters of `target` that can be passed by position."""
    function = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built in
        return ()
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY)
    )


def require_gradients(call_input: Input, names: tuple[str, ...]) -> Input:
    """Return the input with gradients required of the floating tensors whose parameter or path is in `names`.

    Raises:
        UsageError: one of `names` is no floating tensor in it.
    """
    if not names:
        return call_input
    floating = [
        path for path, tensor in call_input.tensors() if tensor.is_floating_point() or tensor.is_complex()
    ]
    for name in names:
        if not any(_is_under(path, name) for path in floating):
            available = ", ".join(floating) or "none"
            raise UsageError(
                f"there is no floating-point tensor {name!r} to take the gradient of (available: {available})"
            )

    def visit(path: str, tensor: torch.Tensor) -> torch.Tensor:
        wanted = path in floating and any(_is_under(path, name) for name in names)
        return tensor.detach().requires_grad_() if wanted else tensor

    return call_input.map_tensors(visit)


def _is_under(path: str, name: str) -> bool:
    return path == name or path.startswith((f"{name}[", f"{name}."))


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} ({text})" if len(text) <= 40 else type(value).__name__
