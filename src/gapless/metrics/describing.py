"""Copy descriptions of arguments from the docstring of a base class to those of subclasses."""

from __future__ import annotations

import inspect
import re
from typing import Any, NamedTuple


class Description(NamedTuple):
    """A docstring, split at its ``Args:`` section."""

    before: str
    arguments: dict[str, str]
    """The entry of each argument in the ``Args:`` section."""
    behind: str

    def __str__(self) -> str:
        listed = "\n".join(self.arguments.values())
        return f"{self.before}\n\nArgs:\n{listed}{self.behind}" if listed else self.before + self.behind


def parse_description(cls: type) -> Description:
    """Split the docstring of a class."""
    before, _, rest = inspect.cleandoc(cls.__doc__ or "").partition("\n\nArgs:\n")
    listed, blank, behind = rest.partition("\n\n")
    entries = re.split(r"\n(?=    \w)", listed) if listed else []
    return Description(before, {entry.strip().partition(":")[0]: entry for entry in entries}, blank + behind)


def inherit_descriptions(cls: Any, root: type) -> None:
    """Add to the docstring of `cls` the entries of arguments it accepts that bases below `root` describe."""
    if not cls.__doc__ or cls.__init__ is root.__init__:  # type: ignore[misc]
        return
    own, inherited = parse_description(cls), dict[str, str]()
    for base in reversed(cls.__mro__[: cls.__mro__.index(root)]):
        inherited.update(parse_description(base).arguments)
    try:
        accepted = (*inspect.signature(cls.__init__).parameters, *cls.more_arguments)
    except (TypeError, ValueError):  # a callable without a signature
        return
    entries = {name: inherited[name] for name in accepted if name in inherited}
    if entries.keys() - own.arguments:
        cls.__doc__ = str(own._replace(arguments={**entries, **own.arguments}))
