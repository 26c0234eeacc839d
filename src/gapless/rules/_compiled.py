"""What the rules over compiled code share: guards and breaks, in words."""

from __future__ import annotations

import re

from gapless.model import Site, SourceLine, Stack
from gapless.model.compiled import Compiled, Recompile

_SIZE = re.compile(
    r"tensor '(?P<name>.+?)' (?:size|stride) mismatch at index (?P<at>\d+)\. "
    r"expected (?P<was>\d+), actual (?P<now>\d+)"
)
_BOUND = re.compile(r"(?P<name>\w[\w.\[\]']*)\.size\(\)\[(?P<at>\d+)\]")
_EQUAL = re.compile(r"^(?:G\['(?P<global>\w+)'\]|(?P<name>[A-Za-z_][\w.\[\]']*)) == (?P<was>\S.*)$")
_LENGTH = re.compile(r"^len\((?P<name>.+)\) == \d+")
_READ = re.compile(r"^___stack\d+ == ")
_KEYWORD = re.compile(r"^(?:kwargs|G)\['(\w+)'\]$")
_ARGUMENT = re.compile(r"^args\[\d+\]$")


def place(line: SourceLine | None, fallback: str = "the compiled function") -> str:
    """``train.py:12 `x = f(x)` ``."""
    if line is None:
        return fallback
    text = line.code.strip()
    return f"{line.short} `{text}`" if text and "`" not in text and len(text) <= 80 else line.short


def site(stack: Stack) -> Site | None:
    """Where a finding of compiled code is."""
    return Site(operator="torch.compile", mechanism="none", stack=stack) if stack else None


def which(compiled: Compiled) -> str:
    """``Net (compiled at train.py:12)``."""
    return (
        f"{compiled.name} (compiled at {compiled.line.short})" if compiled.line is not None else compiled.name
    )


def said(guard: str) -> str:
    """A failed guard as people say it.

    >>> said("tensor 'x' size mismatch at index 0. expected 4, actual 5")
    'dimension 0 of `x` was 5 instead of 4'
    >>> said("self.calls == 3")
    '`self.calls` was no longer 3'
    >>> said("GLOBAL_STATE changed: grad_mode")
    'gradients were switched on or off'
    """
    if found := _SIZE.search(guard):
        changed = f"was {found['now']} instead of {found['was']}"
        return f"dimension {found['at']} of `{plain(found['name'])}` {changed}"
    if _READ.match(guard):
        return "a value that is read on the CPU between two graphs had changed"
    if found := _LENGTH.match(guard):
        return f"the length of `{plain(found['name'])}` had changed"
    if found := _EQUAL.match(guard):
        return f"`{plain(found['global'] or found['name'])}` was no longer {found['was']}"
    if "grad_mode" in guard:
        return "gradients were switched on or off"
    if "autocast" in guard:
        return "autocast was switched on or off"
    return f"a guard failed: {guard}"


def plain(name: str) -> str:
    """What the user calls it: ``input_ids`` for ``kwargs['input_ids']``, ``input`` for ``args[0]``."""
    found = _KEYWORD.match(name)
    return found[1] if found is not None else _ARGUMENT.sub("input", name)


def instead(one: Recompile, compiled: Compiled) -> tuple[str, str]:
    """What to write so that this guard does not fail, in a sentence and in a few words."""
    guard = one.guard
    found = _SIZE.search(guard) or _BOUND.search(guard)
    if found is not None and "dynamic=False" in compiled.options:
        return (
            "remove `dynamic=False`: it compiles every new size; without it, the second size creates one "
            "graph for all sizes",
            "remove `dynamic=False`",
        )
    if found is not None:
        name = plain(found["name"])
        return (
            f"call `torch._dynamo.mark_dynamic({name}, {found['at']})` before the first call, so that one "
            "graph handles every size, or pad to a few sizes",
            f"mark dimension {found['at']} of `{name[:16]}` dynamic",
        )
    if _READ.match(guard):
        return (
            "do not read the value inside the compiled function: return the tensor, and read it after the "
            "call, every N steps",
            "read the value outside the compiled function",
        )
    if found := _LENGTH.match(guard):
        return (
            f"keep the length of `{plain(found['name'])}` the same: pad the list, or stack its tensors",
            f"keep the length of `{plain(found['name'])[:24]}` the same",
        )
    if found := _EQUAL.match(guard):
        name = plain(found["global"] or found["name"])
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
