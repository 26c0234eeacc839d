"""`Input`: the arguments of one call, from whatever the user gives them as."""

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

MOST = 8
"""Inputs that are drawn from an iterable without end, such as a DataLoader."""

HOW = (
    "the inputs of the calls: a function that returns the arguments of one call (a tensor, a tuple, a dict "
    "of keywords, or a tuple and a dict), or yields the arguments of several calls"
)

Made = Literal["given", "added", "edge"]


@dataclass(frozen=True)
class Input:
    """The arguments of one call. `names` are the parameters that `args` go to, for what is told of them."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...] = ()
    made: Made = "given"
    dtype: torch.dtype | None = None
    """What modules are cast to for this input; None leaves them."""
    lenient: bool = False
    """Whether gradients that differ are told in a note only: the input holds NaN or infinities."""

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors in it, by path."""
        return [pair for name, value in self.arguments() for pair in tree.tensors(value, name)]

    def arguments(self) -> Iterator[tuple[str, Any]]:
        """Each argument by the name of its parameter."""
        for position, value in enumerate(self.args):
            known = position < len(self.names)
            yield (self.names[position] if known else f"argument {position + 1}"), value
        yield from self.kwargs.items()

    def mapped(self, visit: tree.Visit, **changes: Any) -> Input:
        """A copy with ``visit(path, tensor)`` in place of each tensor."""
        named = list(self.arguments())
        made = [tree.mapped(value, name, visit) for name, value in named]
        count = len(self.args)
        kwargs = dict(zip(self.kwargs, made[count:], strict=True))
        return replace(self, args=tuple(made[:count]), kwargs=kwargs, **changes)

    def fresh(self, kept: Mapping[int, Any] = types.MappingProxyType({})) -> Input:
        """A copy whose tensors can be changed; what shares memory still does, strides stay.

        `kept` are copies that were made before, by the `id` of what they are of.
        """
        args, kwargs = copy.deepcopy((self.args, self.kwargs), dict(kept))
        return replace(self, args=args, kwargs=kwargs)

    def objects(self) -> list[Any]:
        """What in it may keep state from one call to the next: neither tensors nor arrays."""
        return [
            leaf
            for name, value in self.arguments()
            for _, leaf in tree.leaves(value, name)
            if not isinstance(leaf, torch.Tensor) and type(leaf).__module__ != "numpy"
        ]


def leaf(path: str, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` cut off from what it was computed from, so that gradients end in it."""
    if tensor.is_leaf:
        return tensor
    return tensor.detach().requires_grad_(tensor.requires_grad)


def inputs_from(
    source: Any, target: Callable[..., Any], seed: int, names: tuple[str, ...] = (), **keywords: Any
) -> list[Input]:
    """The inputs that `source` stands for, for calls of `target`.

    `source` is a callable (which receives `keywords`), an iterable of inputs, or one input. `names` are
    parameters whose floating tensors are made to require gradients.

    Raises:
        UsageError: there is none in it, or `names` names none.
    """
    torch.manual_seed(seed)
    made = source(**keywords) if callable(source) else source
    if isinstance(made, (torch.Tensor, tuple, Mapping)):
        found = [made]
    elif hasattr(made, "__iter__") and not isinstance(made, (str, bytes)):
        found = list(itertools.islice(made, MOST))
    else:
        raise UsageError(f"the inputs are of type {_shown(made)}: give {HOW}")
    if not found:
        raise UsageError(f"the inputs are empty: give {HOW}")
    several = len(found) > 1
    inputs = [
        _input(one, target, f"input {number}" if several else "as given").mapped(leaf)
        for number, one in enumerate(found, 1)
    ]
    return [requiring(one, names) for one in inputs]


def added_from(
    source: Any, target: Callable[..., Any], seed: int, names: tuple[str, ...] = ()
) -> list[Input]:
    """Named inputs of the user's own: `source` is a dict of them, or a callable that returns one.

    Raises:
        UsageError: it is something else.
    """
    torch.manual_seed(seed)
    made = source() if callable(source) else source
    if not isinstance(made, Mapping):
        raise UsageError(f"the added cases are of type {_shown(made)}: give a dict from names to inputs")
    inputs = [_input(value, target, str(name), "added").mapped(leaf) for name, value in made.items()]
    return [requiring(one, names) for one in inputs]


def _input(value: Any, target: Callable[..., Any], name: str, made: Made = "given") -> Input:
    parameters = parameter_names(target)
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        args = tuple(value)
        if len(args) == 2 and isinstance(args[0], tuple) and _keywords(args[1]):
            args, kwargs = args[0], dict(args[1])
    elif _keywords(value) and set(value) <= set(parameters):
        args, kwargs = (), dict(value)
    else:
        args = (value,)
    return Input(name, args, kwargs, parameters, made)


def _keywords(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def parameter_names(target: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters of `target` that can be given by position and by name."""
    function = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built in
        return ()
    return tuple(
        one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.POSITIONAL_ONLY)
    )


def requiring(given: Input, names: tuple[str, ...]) -> Input:
    """`given` with gradients asked of the floating tensors whose parameter or path is in `names`.

    Raises:
        UsageError: one of `names` is no floating tensor in it.
    """
    if not names:
        return given
    floating = [path for path, one in given.tensors() if one.is_floating_point() or one.is_complex()]
    for name in names:
        if not any(_under(path, name) for path in floating):
            known = ", ".join(floating) or "none"
            raise UsageError(
                f"there is no floating-point tensor {name!r} to take the gradient of (available: {known})"
            )

    def visit(path: str, tensor: torch.Tensor) -> torch.Tensor:
        wanted = path in floating and any(_under(path, name) for name in names)
        return tensor.detach().requires_grad_() if wanted else tensor

    return given.mapped(visit)


def _under(path: str, name: str) -> bool:
    return path == name or path.startswith((f"{name}[", f"{name}."))


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} ({text})" if len(text) <= 40 else type(value).__name__
