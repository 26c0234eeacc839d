"""Results of the right shape for operators that cannot be computed here, from their fake implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.torch_internals import has_kernel


class NoRule(Exception):
    """The shapes of an operator's results are unknown; the text says why."""


def has_rule(func: Any) -> bool:
    """Whether the overload `func` has a fake implementation."""
    return bool(has_kernel(func.name(), "Meta"))


def shaped_zeros(func: Any, args: Any, kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
    """Return zeros shaped like the results of `func`, and zero what it writes in place.

    `run` calls the fake implementation of `func` with meta tensors.

    Raises:
        NoRule: there is none, or the sizes depend on values.
    """
    if not has_rule(func):
        raise NoRule("it has no fake implementation")
    try:
        fakes = run(*trees.map_tensors(args, _without_values), **trees.map_tensors(kwargs, _without_values))
    except Exception as error:  # the fake implementation is a user's code
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise NoRule(f"its fake implementation failed with: {reason[:160]}") from None
    written = _written_arguments(func, args, kwargs)
    for tensor in written.values():
        for part in trees.tensors(tensor):
            _zero(part)
    results = fakes if isinstance(fakes, tuple) else (fakes,)
    returns = func._schema.returns
    replaced = [
        written.get(_written_alias_set(returns[at]) if at < len(returns) else "", None)
        if _is_tensor(result)
        else result
        for at, result in enumerate(results)
    ]
    replaced = [_zeros(result) if new is None else new for result, new in zip(results, replaced, strict=True)]
    return tuple(replaced) if isinstance(fakes, tuple) else replaced[0]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _written_alias_set(value: Any) -> str:
    """The alias set of an argument or result that is written; "" if it is not."""
    info = value.alias_info
    return ",".join(sorted(info.before_set)) if info is not None and info.is_write else ""


def _written_arguments(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that `func` writes, by alias set."""
    by_alias = {}
    for at, argument in enumerate(func._schema.arguments):
        name = _written_alias_set(argument)
        value = kwargs.get(argument.name, args[at] if at < len(args) else None)
        if name and value is not None:
            by_alias[name] = value
    return by_alias


def _zero(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.detach().zero_()


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        raise NoRule("one of its arguments is sparse")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _zeros(value: Any) -> Any:
    """Replace meta tensors in `value` by zeros on the CPU."""
    return trees.map_tensors(value, _zeros_like)


def _zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    result = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return result.zero_()
