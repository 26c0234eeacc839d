"""`Call`: a call of an operator or of a Python function, as predicates query it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from gapless import trees


@lru_cache(maxsize=4096)
def _schema_parameters(schema: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    names = tuple(argument.name for argument in schema.arguments)
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return names, defaults


@lru_cache(maxsize=1024)
def _signature_parameters(func: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]] | None:
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return None
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    return tuple(parameters), defaults


@lru_cache(maxsize=1024)
def _operator_schemas(name: str) -> tuple[Any, ...]:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return ()
    return tuple(getattr(packet, overload)._schema for overload in packet.overloads())


def _accepts(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `schema` can take these arguments, judged by their number, names and tensors."""
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    if len(args) > len(positional):
        return False
    names = {argument.name for argument in schema.arguments}
    if any(key not in names and key != "input" for key in kwargs):
        return False
    return all(
        isinstance(value, torch.Tensor) == str(argument.type).endswith("Tensor")
        for argument, value in zip(positional, args, strict=False)
        if value is not None and "Optional" not in str(argument.type)
    )


def _builtin_parameters(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return names and defaults for a builtin of torch without a signature, from its operator's schema."""
    schemas = _operator_schemas(getattr(func, "__name__", ""))
    fitting = [schema for schema in schemas if _accepts(schema, args, kwargs)]
    return _schema_parameters(fitting[0]) if fitting else ((), {})


class Call:
    """A call of an operator or of a Python function, as predicates query it.

    `func` is a ``torch._ops.OpOverload``, a Python callable, or an autograd node; `on_device` tells whether a
    tensor is on the (emulated) device.
    """

    __slots__ = ("_on_device", "args", "func", "kwargs")

    def __init__(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        on_device: Callable[[torch.Tensor], bool],
    ) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs or {}
        self._on_device = on_device

    def argument(self, name: str, default: Any = None) -> Any:
        """Return the argument called `name`, from the call or its declared default; else `default`."""
        if name in self.kwargs:
            return self.kwargs[name]
        if name == "self" and "input" in self.kwargs:
            return self.kwargs["input"]
        names, defaults = self._parameters()
        if name in names:
            position = names.index(name)
            if position < len(self.args):
                return self.args[position]
        return defaults.get(name, default)

    def _parameters(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return the names and defaults of the parameters of `func`."""
        schema = getattr(self.func, "_schema", None)
        if schema is not None:
            return _schema_parameters(schema)
        signature = _signature_parameters(self.func)
        return signature if signature is not None else _builtin_parameters(self.func, self.args, self.kwargs)

    def on_device(self, value: Any) -> bool:
        """Whether `value` is a tensor on the device (False for anything else)."""
        return isinstance(value, torch.Tensor) and self._on_device(value)

    def is_cpu(self, value: Any) -> bool:
        """Whether `value` is a tensor that is not on the device."""
        return isinstance(value, torch.Tensor) and not self._on_device(value)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield every tensor among the arguments, lists included."""
        yield from trees.tensors(self.args)
        yield from trees.tensors(self.kwargs)

    @property
    def subject(self) -> Any:
        """The first argument, which the operator works on."""
        return self.args[0] if self.args else self.argument("self")
