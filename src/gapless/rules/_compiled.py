"""Shared by the rules of compiled code: describe guards and graph breaks."""

from __future__ import annotations

import re

from gapless.model import Site, SourceLine, Stack
from gapless.model.compiled import Compiled, Recompile

_SIZE_MISMATCH = re.compile(
    r"tensor '(?P<name>.+?)' (?:size|stride) mismatch at index (?P<at>\d+)\. "
    r"expected (?P<was>\d+), actual (?P<now>\d+)"
)
_SIZE_GUARD = re.compile(r"(?P<name>\w[\w.\[\]']*)\.size\(\)\[(?P<at>\d+)\]")
_EQUALITY_GUARD = re.compile(r"^(?:G\['(?P<global>\w+)'\]|(?P<name>[A-Za-z_][\w.\[\]']*)) == (?P<was>\S.*)$")
_LENGTH_GUARD = re.compile(r"^len\((?P<name>.+)\) == \d+")
_STACK_VALUE_GUARD = re.compile(r"^___stack\d+ == ")
_KEYWORD = re.compile(r"^(?:kwargs|G)\['(\w+)'\]$")
_ARGUMENT = re.compile(r"^args\[\d+\]$")


def describe_place(line: SourceLine | None, fallback: str = "the compiled function") -> str:
    """Return ``train.py:12 `x = f(x)` ``."""
    if line is None:
        return fallback
    text = line.code.strip()
    return f"{line.short} `{text}`" if text and "`" not in text and len(text) <= 80 else line.short


def compiled_site(stack: Stack) -> Site | None:
    """Return the site of a finding in compiled code."""
    return Site(operator="torch.compile", mechanism="none", stack=stack) if stack else None


def describe_compiled(compiled: Compiled) -> str:
    """Return ``Net (compiled at train.py:12)``."""
    return (
        f"{compiled.name} (compiled at {compiled.line.short})" if compiled.line is not None else compiled.name
    )


def describe_guard(guard: str) -> str:
    """Describe a failed guard in plain words.

    >>> describe_guard("tensor 'x' size mismatch at index 0. expected 4, actual 5")
    'dimension 0 of `x` was 5 instead of 4'
    >>> describe_guard("self.calls == 3")
    '`self.calls` was no longer 3'
    >>> describe_guard("GLOBAL_STATE changed: grad_mode")
    'gradients were switched on or off'
    """
    if match := _SIZE_MISMATCH.search(guard):
        changed = f"was {match['now']} instead of {match['was']}"
        return f"dimension {match['at']} of `{user_name(match['name'])}` {changed}"
    if _STACK_VALUE_GUARD.match(guard):
        return "a value that is read on the CPU between two graphs had changed"
    if match := _LENGTH_GUARD.match(guard):
        return f"the length of `{user_name(match['name'])}` had changed"
    if match := _EQUALITY_GUARD.match(guard):
        return f"`{user_name(match['global'] or match['name'])}` was no longer {match['was']}"
    if "grad_mode" in guard:
        return "gradients were switched on or off"
    if "autocast" in guard:
        return "autocast was switched on or off"
    return f"a guard failed: {guard}"


def user_name(name: str) -> str:
    """Return the user's name for a guarded value: ``input_ids`` for ``kwargs['input_ids']``, ``input`` for
    ``args[0]``."""
    match = _KEYWORD.match(name)
    return match[1] if match is not None else _ARGUMENT.sub("input", name)


def advise_guard(recompile: Recompile, compiled: Compiled) -> tuple[str, str]:
    """Return what to write so that this guard does not fail, in a sentence and in a few words."""
    guard = recompile.guard
    match = _SIZE_MISMATCH.search(guard) or _SIZE_GUARD.search(guard)
    if match is not None and "dynamic=False" in compiled.options:
        return (
            "remove `dynamic=False`: it compiles every new size; without it, the second size creates one "
            "graph for all sizes",
            "remove `dynamic=False`",
        )
    if match is not None:
        name = user_name(match["name"])
        return (
            f"call `torch._dynamo.mark_dynamic({name}, {match['at']})` before the first call, so that one "
            "graph handles every size, or pad to a few sizes",
            f"mark dimension {match['at']} of `{name[:16]}` dynamic",
        )
    if _STACK_VALUE_GUARD.match(guard):
        return (
            "do not read the value inside the compiled function: return the tensor, and read it after the "
            "call, every N steps",
            "read the value outside the compiled function",
        )
    if match := _LENGTH_GUARD.match(guard):
        return (
            f"keep the length of `{user_name(match['name'])}` the same: pad the list, or stack its tensors",
            f"keep the length of `{user_name(match['name'])[:24]}` the same",
        )
    if match := _EQUALITY_GUARD.match(guard):
        name = user_name(match["global"] or match["name"])
        if name.endswith("['lr']") or name == "lr":
            return (
                "give the learning rate as a tensor, `lr=torch.tensor(1e-3)`: schedules then change its "
                "value without recompiling the step",
                "make the learning rate a tensor",
            )
        return (
            f"make `{name}` a tensor (`register_buffer` in a module), or change it outside the compiled "
            "code: Python values are compiled in",
            f"make `{name[:24]}` a tensor",
        )
    return (
        "keep the guarded value the same between calls, or compile the two uses separately, each with its "
        "own `torch.compile`",
        "keep the guarded value the same",
    )
