"""What a class says of its arguments describes those of every class derived from it that takes them."""

from __future__ import annotations

import inspect
import re
from typing import Any, NamedTuple


class Description(NamedTuple):
    """A docstring, taken apart."""

    before: str
    arguments: dict[str, str]
    """What is said of each, under the heading ``Args:``."""
    behind: str

    def __str__(self) -> str:
        listed = "\n".join(self.arguments.values())
        return f"{self.before}\n\nArgs:\n{listed}{self.behind}" if listed else self.before + self.behind


def description(of: type) -> Description:
    """What a class says of itself."""
    before, _, rest = inspect.cleandoc(of.__doc__ or "").partition("\n\nArgs:\n")
    listed, blank, behind = rest.partition("\n\n")
    entries = re.split(r"\n(?=    \w)", listed) if listed else []
    return Description(before, {one.strip().partition(":")[0]: one for one in entries}, blank + behind)


def describe(cls: Any, root: type) -> None:
    """Add to what `cls` says of itself what the classes between it and `root` say of arguments it takes."""
    if not cls.__doc__ or cls.__init__ is root.__init__:  # type: ignore[misc]
        return
    own, known = description(cls), dict[str, str]()
    for base in reversed(cls.__mro__[: cls.__mro__.index(root)]):
        known.update(description(base).arguments)
    try:
        taken = (*inspect.signature(cls.__init__).parameters, *cls.beyond.split())
    except (TypeError, ValueError):  # something callable of the user's own
        return
    told = {name: known[name] for name in taken if name in known}
    if told.keys() - own.arguments:
        cls.__doc__ = str(own._replace(arguments={**told, **own.arguments}))
