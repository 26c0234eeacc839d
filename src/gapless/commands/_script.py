"""Commands that run a script: options come before SCRIPT, everything after it is the script's."""

from __future__ import annotations

import click

WORDS = "gapless.words"
"""Key of the context's entry with Gapless's own options and the script's words, as written."""


class ScriptCommand(click.Command):
    """Leaves what follows SCRIPT or ``-m MODULE`` untouched, like Python's own command line."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # passed on as they came
        self.allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options, rest = self._split(args)
        ctx.meta[WORDS] = options, rest
        return super().parse_args(ctx, [*options, "--", *rest] if rest else options)

    def _split(self, args: list[str]) -> tuple[list[str], list[str]]:
        """Split `args` into Gapless's own options, and the script's name and arguments."""
        position = 0
        while position < len(args):
            word = args[position]
            if word == "--":
                return args[:position], args[position + 1 :]
            if not word.startswith("-") or word == "-":
                break
            name, attached = self._last_option(word)
            takes_value = name in self._with_value()
            position += 2 if takes_value and not attached else 1
            if name in ("-m", "--module"):
                break
        return args[:position], args[position:]

    def _last_option(self, word: str) -> tuple[str, bool]:
        """Return the option in `word` that may take a value, and whether the value is attached to it."""
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
