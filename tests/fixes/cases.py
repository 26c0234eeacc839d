"""Scripts in one text: each begins with a line ``## name``."""

from __future__ import annotations


def split_cases(text: str) -> dict[str, str]:
    """Return the scripts in `text` by their names.

    >>> split_cases("## a\\nx = 1\\n## b\\ny = 2\\n")
    {'a': 'x = 1\\n', 'b': 'y = 2\\n'}
    """
    parts = text.lstrip("\n").split("## ")[1:]
    pairs = (part.split("\n", 1) for part in parts)
    return {name: body.rstrip("\n") + "\n" for name, body in pairs}
