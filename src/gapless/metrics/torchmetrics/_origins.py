"""Of which class each unwaited class was made."""

from __future__ import annotations

ORIGINS: dict[type, type] = {}


def waited_class(cls: type) -> type:
    """The class of which `cls` is the unwaited one, or `cls` itself."""
    return ORIGINS.get(cls, cls)


def is_unwaited(thing: object) -> bool:
    """Whether `thing` has been unwaited."""
    return type(thing) in ORIGINS
