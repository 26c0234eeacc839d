"""The type of the --steps option."""

from __future__ import annotations

import click


class StepsOption(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """A positive number, or ``all``."""

    name = "N|all"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value == "all":
            return None
        try:
            steps = int(str(value))
        except ValueError:
            steps = 0
        if steps < 1:
            self.fail(f"{value!r} is neither a positive number nor 'all'", param, ctx)
        return steps
