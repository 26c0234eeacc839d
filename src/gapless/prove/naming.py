"""Recognise names of callables and scripts on the command line; needs no torch."""

from __future__ import annotations

import os
import re
import shlex

TARGET_PATTERN = re.compile(
    r"(?P<where>.+?\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<what>[A-Za-z_(].*)", re.DOTALL
)
"""A file or module, a colon, and a name or expression in it."""


def is_target(name: str) -> bool:
    """Whether `name` names a callable: a file or module, a colon, and a name in it."""
    return TARGET_PATTERN.fullmatch(name) is not None and not os.path.exists(name)


def script_words(name: str) -> tuple[str, ...]:
    """Split a script and its arguments (``train.py``, ``"train.py --epochs 1"``); () for other names."""
    if name.endswith(".py"):
        return (name,)
    try:
        words = shlex.split(name)
    except ValueError:
        return ()
    return tuple(words) if len(words) > 1 and words[0].endswith(".py") else ()
