"""A command that runs a script: options come before SCRIPT, everything after it is the script's."""

from __future__ import annotations

import click


class ScriptCommand(click.Command):
    """Leaves what follows SCRIPT, or ``-m MODULE``, untouched, as Python's own command line does."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # passed on as they came
        self.allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        position = self._end_of_options(args)
        if position < len(args) and args[position] != "--":
            args = [*args[:position], "--", *args[position:]]
        return super().parse_args(ctx, args)

    def _end_of_options(self, args: list[str]) -> int:
        """The position in `args` at which the script's own arguments, or its name, begin."""
        position = 0
        while position < len(args):
            word = args[position]
            if word == "--" or not word.startswith("-") or word == "-":
                break
            name, attached = self._last_option(word)
            takes_value = name in self._with_value()
            position += 2 if takes_value and not attached else 1
            if name in ("-m", "--module"):
                break
        return min(position, len(args))

    def _last_option(self, word: str) -> tuple[str, bool]:
        """The option in `word` that may take a value, and whether the value is attached to it."""
        if word.startswith("--"):
            name, equals, _ = word.partition("=")
            return name, bool(equals)
        for position, letter in enumerate(word[1:], 1):
            if f"-{letter}" in self._with_value():
                return f"-{letter}", position + 1 < len(word)
        return word, False

    def _with_value(self) -> set[str]:
        return {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag and not param.count
            for name in param.opts
        }
