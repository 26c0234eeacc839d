"""Results of the right shape for operators that cannot be computed here, by their own shape rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.torch_internals import has_kernel


class NoRule(Exception):
    """Why the shapes of an operator's results are not known."""


def has_rule(func: Any) -> bool:
    """Whether somebody registered what the results of the overload `func` look like."""
    return bool(has_kernel(func.name(), "Meta"))


def shaped(func: Any, args: Any, kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
    """Zeros as `func` would shape its results; what it writes in place becomes zeros as well.

    `run` calls `func` with tensors that have no values, so that its rule for those is asked.

    Raises:
        NoRule: it has none, or the sizes depend on values.
    """
    if not has_rule(func):
        raise NoRule("it has no fake implementation")
    try:
        found = run(*trees.mapped(args, _without_values), **trees.mapped(kwargs, _without_values))
    except Exception as error:  # a rule is anybody's code
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise NoRule(f"its fake implementation failed with: {reason[:160]}") from None
    written = _written(func, args, kwargs)
    for tensor in written.values():
        for one in trees.tensors(tensor):
            _blank(one)
    results = found if isinstance(found, tuple) else (found,)
    returns = func._schema.returns
    made = [
        written.get(_alias(returns[at]) if at < len(returns) else "", None) if _is_tensor(one) else one
        for at, one in enumerate(results)
    ]
    made = [_zeros(one) if new is None else new for one, new in zip(results, made, strict=True)]
    return tuple(made) if isinstance(found, tuple) else made[0]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _alias(one: Any) -> str:
    """The name of the set of aliases that an argument or a result writes to; "" for none."""
    info = one.alias_info
    return ",".join(sorted(info.before_set)) if info is not None and info.is_write else ""


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that `func` writes, by the set of aliases they are in."""
    found = {}
    for at, argument in enumerate(func._schema.arguments):
        name = _alias(argument)
        value = kwargs.get(argument.name, args[at] if at < len(args) else None)
        if name and value is not None:
            found[name] = value
    return found


def _blank(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.detach().zero_()


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        raise NoRule("one of its arguments is sparse")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _zeros(value: Any) -> Any:
    """`value` with zeros in place of tensors that have no values."""
    return trees.mapped(value, _filled)


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return made.zero_()
