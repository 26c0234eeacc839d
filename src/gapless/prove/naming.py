"""How callables and scripts are named on the command line. Needs no torch."""

from __future__ import annotations

import os
import re
import shlex

FORM = re.compile(r"(?P<where>.+?\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<what>[A-Za-z_(].*)", re.DOTALL)


def is_target(name: str) -> bool:
    """Whether `name` has the form of a callable's: a file or a module, a colon, and what is in it."""
    return FORM.fullmatch(name) is not None and not os.path.exists(name)


def script_words(name: str) -> tuple[str, ...]:
    """A script and its arguments, where `name` is one: ``train.py`` or ``"train.py --epochs 1"``; else ()."""
    if name.endswith(".py"):
        return (name,)
    try:
        words = shlex.split(name)
    except ValueError:
        return ()
    return tuple(words) if len(words) > 1 and words[0].endswith(".py") else ()
