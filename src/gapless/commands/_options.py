"""From the command line to one struct: each command has one, and its defaults are the options' defaults."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click
import msgspec

Options = TypeVar("Options", bound=msgspec.Struct)


def takes(defaults: msgspec.Struct) -> Callable[[click.Command], click.Command]:
    """Give a command the values of its options as one struct, `options`, made like `defaults`.

    An option belongs to the field of its name, in `defaults` or in a struct that is one of its fields, and
    has that field's value as its default. The command receives other parameters by name.
    """

    def bind(command: click.Command) -> click.Command:
        fields = default_values(defaults)
        for param in command.params:
            if param.name in fields:
                param.default = fields[param.name]
        run = command.callback
        assert run is not None

        @wraps(run)
        def run_with_options(**values: Any) -> Any:
            parameters = {name: value for name, value in values.items() if name not in fields}
            return run(options=fill(defaults, values), **parameters)

        command.callback = run_with_options
        return command

    return bind


def default_values(defaults: msgspec.Struct) -> dict[str, Any]:
    """Return the value of each field of `defaults`, and of structs in it."""
    values: dict[str, Any] = {}
    for name in defaults.__struct_fields__:
        value = getattr(defaults, name)
        inner = default_values(value) if isinstance(value, msgspec.Struct) else {name: value}
        assert not values.keys() & inner.keys(), f"two options are called {values.keys() & inner.keys()}"
        values |= inner
    return values


def fill(defaults: Options, values: dict[str, Any]) -> Options:
    """Return `defaults` with those of `values` that name a field of it, or of a struct in it."""
    changes: dict[str, Any] = {}
    for name in defaults.__struct_fields__:
        value = getattr(defaults, name)
        if isinstance(value, msgspec.Struct):
            changes[name] = fill(value, values)
        elif name in values:
            changes[name] = values[name]
    return msgspec.structs.replace(defaults, **changes)
